"""Label the episodes of a run from the page, and name the commands that train on the labels."""

from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from turnwise.core.errors import UserError
from turnwise.files.run_folders import CONFIG_FILE
from turnwise.record.labels import (
    LABELS_FILE,
    EpisodeKey,
    EpisodeLabel,
    Label,
    append_label,
    count_labels,
    digest_episode,
    read_labels,
)
from turnwise.studio.form import type_value
from turnwise.studio.requests import ShortText
from turnwise.text.command_line import spell_command
from turnwise.viewer.settings import get_setting, read_toml
from turnwise.viewer.store import RunStore
from turnwise.viewer.viewed_folder import ViewedFolder


class LabelRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    run: ShortText
    number: Annotated[int, Field(ge=0, le=2**53)]
    """Number of the episode in the viewer."""
    label: Label


class Labels:
    """Reads and writes labels. Thread-safe; no other process may write them."""

    def __init__(self, root: ViewedFolder) -> None:
        self._root, self._store, self._writing = root, RunStore(root), Lock()

    def set(self, request: LabelRequest) -> None:
        key, digest = self._find(request.run, request.number)
        with self._writing:
            label = EpisodeLabel(key=key, label=request.label, digest=digest)
            append_label(self._root.find_run(request.run), label)

    def get(self, run: str, number: int) -> Label:
        """Return the label of an episode. One of another episode, which this one has replaced, does not count."""
        key, digest = self._find(run, number)
        label = read_labels(self._root.find_run(run)).get(key)
        return label.label if label is not None and label.digest == digest else Label.NONE

    def describe(self, run: str) -> dict[str, Any]:
        """Return the number of labels of each kind, the file, and the commands that train on it."""
        folder = self._root.find_run(run)
        counts, path = count_labels(folder), short_path(folder)
        settings = read_toml(self._root, folder, CONFIG_FILE)
        target, params = get_setting(settings, "env", "kind"), get_setting(settings, "env", "params")
        return {
            "good": counts[Label.GOOD],
            "bad": counts[Label.BAD],
            "file": str(path / LABELS_FILE),
            "run": str(path),
            "target": str(target),
            "commands": spell_commands(path, str(target), params if isinstance(params, dict) else {}),
        }

    def _find(self, run: str, number: int) -> tuple[EpisodeKey, str]:
        """Return the key of an episode and the digest of its line."""
        reader = self._store.open(run)
        if reader.models is not None:
            raise UserError(f"{run} is an evaluation, and labels belong to a run. Label the episodes of a run.")
        table = reader.table()
        position = table.find(number)
        if position is None:
            raise UserError(f"No trajectory {number} in {run}. Reload the list.")
        row = table.row(position)
        with reader.line_reader() as read_line:
            return EpisodeKey.of(row), digest_episode(read_line(row))


def spell_commands(run: Path, target: str, params: Mapping[str, Any]) -> dict[str, str]:
    """Return the commands that train a run's model on its labels."""
    options = [word for name, value in params.items() for word in (f"--env.params.{name}", type_value(value))]
    file = run / LABELS_FILE
    return {
        "demonstrations": spell_command("sft", target, *options, "--demos", file, "--model.name", run),
        "preferences": spell_command(
            *("train", "--from", run, "--model.name", run, "--data", file, "--algo.preset", "dpo")
        ),
    }


def short_path(folder: Path) -> Path:
    """Return a folder relative to the working directory if it is below it."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
