"""An evaluation's folder: files only, each episode in it as soon as it is done, so that a stop loses none.

evaluation.toml           what was asked: the tasks, how many tries, the models
models/NAME.toml          all settings of a model's episodes
trajectories/NAME.jsonl   a model's episodes, one a line, in the order in which they ended
models/NAME.tokens.jsonl  how each token id that occurs in them is written
summary.json              what came of it; there once all was played
success.svg               the same as a figure
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
from turnwise.core.token_name import TokenName
from turnwise.core.trajectory import Trajectory
from turnwise.record.disk import LOCK_NAME, FolderLock, append_bytes, is_leftover, wrap_disk_errors, write_atomic
from turnwise.record.jsonl import drop_partial_line, encode_row, read_jsonl, replace_nonfinite
from turnwise.record.trajectories import TokenNamesFile, trajectory_from_row, trajectory_to_row
from turnwise.rollout.chat_episode import MESSAGES, spoke_messages

PLAN = "evaluation.toml"


class EvaluationFolder:
    """Locked while it is open: two evaluations never write into one folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_new = not (path / PLAN).exists()
        """Nothing was asked for here before."""
        self._token_names: dict[str, TokenNamesFile] = {}
        with wrap_disk_errors(path, "start again, or choose another --out (nothing was started)"):
            _refuse_other(path)
            path.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(path)
            for name in ("models", "trajectories"):
                (path / name).mkdir(exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """What came to nothing leaves nothing, so that a mistake does not take the name."""
        if error is not None and self.is_new and not self.has_episodes:
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()

    @property
    def has_episodes(self) -> bool:
        """Whether it holds episodes."""
        return any((self.path / "trajectories").iterdir())

    def write_plan(self, plan: Mapping[str, Any], settings: Mapping[str, str]) -> None:
        """`settings`: each model's, as TOML, by its name. The plan comes last: where it is, all is."""
        with self._writing():
            for name, text in settings.items():
                write_atomic(self.settings_path(name), text.encode())
            write_atomic(self.path / PLAN, tomli_w.dumps(plan).encode())
            (self.path / "summary.json").unlink(missing_ok=True)

    def settings_path(self, name: str) -> Path:
        return self.path / "models" / f"{name}.toml"

    def trajectories_path(self, name: str) -> Path:
        return self.path / "trajectories" / f"{name}.jsonl"

    def read_trajectories(self, name: str) -> list[Trajectory]:
        """What is there of a model. A half-written last line is dropped, so that the next append starts a new one."""
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
        """One episode, of task number `task`."""
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
        with wrap_disk_errors(self.path, f"go on with --resume {self.path} (all episodes that ended are safe)"):
            yield


def evaluation_to_row(trajectory: Trajectory, task: int, decode: Callable[[Sequence[int]], str]) -> dict[str, Any]:
    """A trajectory's row as in a run's folder. Of an agent that speaks messages, the contexts are what it was told."""
    row = trajectory_to_row(trajectory, step=0, group=task, decode=decode)
    for turn, turn_row in zip(trajectory.turns, row["turns"], strict=True):
        if spoke_messages(turn):
            turn_row["context"] = "\n\n".join(f"[{each['role']}]\n{each['content']}" for each in turn.info[MESSAGES])
    return row


def read_plan(path: Path) -> dict[str, Any]:
    """What was asked for in this folder."""
    try:
        return tomllib.loads((path / PLAN).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(
            f"{path} is no evaluation (it has no {PLAN}): give the folder of one, as runs/eval-NAME"
        ) from error
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path / PLAN} ({error}): restore it, or evaluate anew") from error


def _refuse_other(path: Path) -> None:
    if not path.exists() or (path / PLAN).exists():
        return
    if not path.is_dir():
        raise UserError(f"{path} is a file, not a folder: choose another --out")
    own = {LOCK_NAME, "models", "trajectories"}  # of a start that was killed before its plan was written
    strange = [file for file in path.iterdir() if file.name not in own and not is_leftover(file)]
    if strange:
        raise UserError(f"{path} holds something else ({strange[0].name}): choose another --out")


def _locked(path: Path) -> FolderLock:
    try:
        return FolderLock(path)
    except UserError as error:
        raise UserError(str(error).replace("--record.name", "--out")) from error
