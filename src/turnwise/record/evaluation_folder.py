"""An evaluation's folder: files only, and each episode is written as soon as it ends.

evaluation.toml           the plan: tasks, attempts per task, models
models/NAME.toml          all settings of a model's episodes
models/NAME.tokens.jsonl  text of each token id that occurs in them
trajectories/NAME.jsonl   a model's episodes, one per line, in the order in which they ended
summary.json              results; written when all episodes have ended
success.svg               the results as a chart
images/HASH.png           images in the episodes' contexts, by content hash
"""

import json
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import tomli_w

from turnwise.core.errors import UserError
from turnwise.core.trajectory import TokenName, Trajectory
from turnwise.files.disk import FolderLock, append_bytes, wrap_disk_errors, write_atomic
from turnwise.files.run_folders import EVALUATION_FILE, refuse_foreign
from turnwise.record.jsonl import drop_partial_line, encode_row, read_jsonl, replace_nonfinite
from turnwise.record.trajectories import TokenNamesFile, trajectory_from_row, trajectory_to_row
from turnwise.rollout.chat_episode import MESSAGES_KEY, is_chat_turn


class EvaluationFolder:
    """The files of one evaluation, locked while it is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_new = not (path / EVALUATION_FILE).exists()
        """The folder had no plan before."""
        self._token_names: dict[str, TokenNamesFile] = {}
        with wrap_disk_errors(path, "start again, or choose another folder (nothing was started)"):
            refuse_foreign(path)
            path.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(path, chosen_by="folder")
            for name in ("models", "trajectories"):
                (path / name).mkdir(exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Release the lock. After an error, remove a new folder without episodes to free its name."""
        if error is not None and self.is_new and not self.has_episodes:
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()

    @property
    def has_episodes(self) -> bool:
        return any((self.path / "trajectories").iterdir())

    def write_plan(self, plan: Mapping[str, Any], settings: Mapping[str, str]) -> None:
        """Write the settings of each model (TOML by name), then the plan. A folder with a plan is complete."""
        with self._writing():
            for name, text in settings.items():
                write_atomic(self.settings_path(name), text.encode())
            write_atomic(self.path / EVALUATION_FILE, tomli_w.dumps(plan).encode())
            (self.path / "summary.json").unlink(missing_ok=True)

    def settings_path(self, name: str) -> Path:
        return self.path / "models" / f"{name}.toml"

    def trajectories_path(self, name: str) -> Path:
        return self.path / "trajectories" / f"{name}.jsonl"

    def read_trajectories(self, name: str) -> list[Trajectory]:
        """Return a model's episodes so far. A partial last line is deleted before the next append."""
        path = self.trajectories_path(name)
        with self._writing():
            drop_partial_line(path)
        return [trajectory_from_row(row) for _, row in read_jsonl(path)]

    def add_episode(
        self,
        name: str,
        trajectory: Trajectory,
        task: int,
        decode: Callable[[Sequence[int]], str],
        name_token: Callable[[int], TokenName],
    ) -> None:
        """Append one episode of task number `task`."""
        row = evaluation_to_row(trajectory, task, decode)
        names = self._token_names.setdefault(name, TokenNamesFile(self.path / "models" / f"{name}.tokens.jsonl"))
        with self._writing():
            names.add([row], name_token)
            append_bytes(self.trajectories_path(name), encode_row(row) + b"\n")

    def write_results(self, summary: Mapping[str, Any], figure: str) -> None:
        text = json.dumps(replace_nonfinite(summary), indent=2, allow_nan=False) + "\n"
        with self._writing():
            write_atomic(self.path / "success.svg", figure.encode())
            write_atomic(self.path / "summary.json", text.encode())

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with wrap_disk_errors(self.path, f"evaluate into {self.path} again: finished episodes are kept"):
            yield


def evaluation_to_row(trajectory: Trajectory, task: int, decode: Callable[[Sequence[int]], str]) -> dict[str, Any]:
    """Convert a trajectory to its row. For a chat model, the contexts are the messages it received."""
    row = trajectory_to_row(trajectory, step=0, group=task, decode=decode)
    for turn, turn_row in zip(trajectory.turns, row["turns"], strict=True):
        if is_chat_turn(turn):
            turn_row["context"] = "\n\n".join(
                f"[{message['role']}]\n{message['content']}" for message in turn.info[MESSAGES_KEY]
            )
    return row


def read_plan(path: Path) -> dict[str, Any]:
    """Return the plan of an evaluation."""
    try:
        return tomllib.loads((path / EVALUATION_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(
            f"{path} is not an evaluation (no {EVALUATION_FILE}). Give the folder of one, e.g. runs/eval-NAME."
        ) from error
    except (OSError, ValueError) as error:
        raise UserError(
            f"Cannot read {path / EVALUATION_FILE} ({error}). Restore it, or start a new evaluation."
        ) from error
