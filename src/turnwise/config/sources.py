"""Settings of the source of a step's episodes."""

from typing import Any

from turnwise.settings.choice import Choice, choices
from turnwise.settings.needs import IN_TURN, Need


class SourceSettings(Choice):
    """Settings of a source.

    A source of your own, rollout.source FILE.py:Name, is a class derived from `tw.SourceSettings` with `build`.
    """

    def build(self, run: Any) -> Any:
        """Return the user's `tw.Source`, given `tw.RunParts`."""
        raise NotImplementedError

    def needs(self) -> list[Need]:
        return [Need(IN_TURN, f"rollout.source {self.kind} is asked for a step's episodes when the step begins")]


class AutoSource(SourceSettings, kind="auto"):
    """Plays episodes, ahead of the learner with rollout.max_staleness, or draws them from data.sources."""

    def needs(self) -> list[Need]:
        return []


SOURCES: dict[str, type[SourceSettings]] = choices(AutoSource)
