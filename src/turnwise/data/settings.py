"""Settings of stored episodes."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from turnwise.settings.needs import PLAYED, STORED, Lack
from turnwise.settings.section import Section


class DataConfig(Section):
    """Stored episodes to train on instead of playing the environment (`turnwise train --data`)."""

    sources: tuple[str, ...] = ()
    """Runs, files of conversations or episodes, and dataset folders; default: the environment is played."""
    episodes: Literal["training", "evaluation", "all"] = "training"
    """Episodes of a run that are read: of its training steps, of its evaluations, or both."""
    keep: Literal["all", "succeeded"] | float = "all"
    """Episodes that are kept: all, those that succeeded, or those with at least this total reward."""

    uses: ClassVar[Mapping[str, str | tuple[str, ...]]] = dict.fromkeys(("episodes", "keep"), STORED)

    def lacks(self) -> dict[str, Lack]:
        if not self.sources:
            return {STORED: Lack("an empty data.sources", "names none", "name stored episodes (data.sources)")}
        fix = "remove data.sources to play the environment"
        return {PLAYED: Lack("data.sources", "replaces them", fix)}
