"""Checkpoints: written to a temporary folder, then renamed, so that a partial or damaged one is never loaded.

checkpoints/step_000010/  model.safetensors, config.json, tokenizer... (a plain Hugging Face folder)
                          learner.safetensors (optimizers, critic), or learner/ of a sharded learner
                          metrics.jsonl (copy of the run's metrics until then)
                          state.json (counters, and hashes of the files)
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from turnwise.core.errors import UserError
from turnwise.core.learner import Learner
from turnwise.files.disk import remove_folder, remove_leftovers, sync_folder, wrap_disk_errors
from turnwise.files.run_folders import METRICS_FILE
from turnwise.models.loading.load import LoadedModel
from turnwise.record.provenance import file_digest
from turnwise.record.resume_command import advise_resume, spell_resume
from turnwise.text.truncation import first_line
from turnwise.training.learner_state import STATE_FILE, STATE_FOLDER
from turnwise.training.step import Part

BEST = "best"
OLD = ".old-"
"""Prefix of a checkpoint that is being replaced."""
STEP_NAME = re.compile(r"step_[0-9]{6,}")
OWN_FILES = (STATE_FILE, STATE_FOLDER, METRICS_FILE, "state.json")
"""Files and folders of a checkpoint besides the Hugging Face model."""

VERSION = 2
"""Format of `state.json`. 1, which has no version, had a field per feature."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """State of training after `step` steps, besides the learner's files."""

    step: int
    skipped_steps: int
    parts: Mapping[str, Any] = field(default_factory=dict)
    """State of each part of the loop, by its name."""
    version: int = VERSION
    """Format of the state that was read."""


class Checkpoints:
    """Regular checkpoints every `every` steps, the best one, and one at the step where the run was stopped.

    The one at a stop is deleted at the next save, and does not count for `keep_last` and rollbacks, so that a resumed
    run continues like one that was never stopped.
    """

    def __init__(self, folder: Path, *, keep_last: int, tokenizer: Any, every: int = 1) -> None:
        self.folder, self.keep_last, self.tokenizer, self.every = folder, keep_last, tokenizer, every

    def save(self, learner: Learner, state: State, *, best: bool = False) -> Path:
        """Write the checkpoint of this step, and delete older ones beyond `keep_last`."""
        target = self.folder / (BEST if best else f"step_{state.step:06d}")
        if not best and _has_state(target, state):
            return target
        temporary = self.folder / f".writing-{target.name}"
        with wrap_disk_errors(target, partial(advise_resume, self.folder.parent)):
            try:
                self._write(learner, state, temporary)
                _replace(temporary, target)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        if not best:
            self.drop_before(target)
        return target

    def drop_before(self, current: Path) -> None:
        """Delete checkpoints of earlier steps than this one's, except the last `keep_last` regular ones.

        A resume calls it too: a kill between a save and its deletions would leave checkpoints that a rollback, which
        goes to the oldest, must not find.
        """
        step = step_of(current)
        kept = [path for path in self.regular() if step_of(path) <= step][-self.keep_last :]
        self._drop(path for path in self.steps() if step_of(path) < step and path not in kept)

    def drop_after(self, kept: Path) -> None:
        """Delete checkpoints of later steps than this one's."""
        self._drop({step for step in self.steps() if step_of(step) > step_of(kept)})

    def _drop(self, folders: Iterable[Path]) -> None:
        for folder in folders:
            remove_folder(folder)

    def sweep(self) -> None:
        """Restore the name of a checkpoint that was being replaced when the run was killed; delete other leftovers."""
        for old in self.folder.glob(f"{OLD}*"):
            target = self.folder / old.name.removeprefix(OLD)
            if not target.exists():
                old.rename(target)
        remove_leftovers(self.folder)

    def _write(self, learner: Learner, state: State, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        learner.check_finite(f"at step {state.step} and are not saved")
        with _numbered_errors():
            learner.save_model(folder, self.tokenizer)
            learner.save_state(folder)
        if (metrics := self.folder.parent / METRICS_FILE).is_file():
            shutil.copyfile(metrics, folder / METRICS_FILE)
        _write_state(folder, state)

    def steps(self) -> list[Path]:
        return step_folders(self.folder)

    def regular(self) -> list[Path]:
        return [path for path in self.steps() if (step := step_of(path)) > 0 and step % self.every == 0]

    def newest(self) -> tuple[Path, State] | None:
        """Return the newest complete checkpoint; None if there is none yet."""
        return newest(self.folder)


def capture_state(step: int, learner: Learner, parts: Sequence[Part]) -> State:
    states = {part.name: part.state() for part in parts if part.name}
    return State(step=step, skipped_steps=learner.skipped_steps, parts=states)


class SaveCheckpoints(Part):
    """Saves checkpoints when they are due and where training stops."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        learner: Learner,
        parts: Sequence[Part],
        *,
        steps: int,
        on_save: Sequence[Callable[[int], None]] = (),
    ) -> None:
        """`parts`: those whose state is saved; it may grow until training begins. `steps`: of the whole run.

        `on_save` is called after each save with the oldest step that a run may now be resumed from.
        """
        self.checkpoints = checkpoints
        self._learner, self._parts, self._steps, self._on_save = learner, parts, steps, on_save

    def save(self, step: int, *, best: bool = False) -> Path:
        state = capture_state(step, self._learner, self._parts)
        path = self.checkpoints.save(self._learner, state, best=best)
        oldest = min(map(step_of, self.checkpoints.steps()), default=0 if best else step)
        for call in self._on_save:
            call(oldest)
        return path

    async def begin(self, step: int) -> None:
        """Save again if the run stopped before the evaluation of this step was part of its checkpoint."""
        await self.finish(step)

    async def finish(self, step: int) -> None:
        if 0 < step < self._steps and step % self.checkpoints.every == 0:
            self.save(step)

    def stop(self, step: int) -> None:
        self.save(step)


def step_folders(folder: Path) -> list[Path]:
    """Return the folders of steps, oldest first; other files in the folder are ignored."""
    paths = [path for path in folder.glob("step_*") if STEP_NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(paths, key=step_of)


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))


def newest(folder: Path) -> tuple[Path, State] | None:
    """Return the newest complete checkpoint; log a warning about newer ones that are damaged."""
    damaged = []
    for step_folder in reversed(step_folders(folder)):
        try:
            checkpoint = step_folder, read_state(step_folder)
        except UserError as error:
            damaged.append(str(error))
            continue
        if damaged:
            log.warning("%s Using the older checkpoint %s instead.", " ".join(damaged), step_folder.name)
        return checkpoint
    if damaged:
        raise UserError(f"{damaged[0]} No other checkpoint in {folder} is complete: start a new run with its settings.")
    return None


def last_checkpoint(folder: Path) -> Path:
    """Return the newest complete checkpoint, which is also a Hugging Face model folder."""
    checkpoint = newest(folder)
    if checkpoint is None:
        raise UserError(f"{folder} has no checkpoint yet. Train first: `{spell_resume(folder.parent)}`")
    return checkpoint[0]


def restore(folder: Path, learner: Learner, state: State, load: Callable[[str], LoadedModel]) -> None:
    """Copy a checkpoint's weights and state into the learner.

    `load` loads the folder like any model, since the names in its files may differ from the parameters'.
    """
    model = load(str(folder)).model
    try:
        learner.load_weights(model)
        learner.load_state(folder, skipped_steps=state.skipped_steps)
    except (LookupError, ValueError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise UserError(
            f"Checkpoint {folder} does not fit the settings of its run ({first_line(error, 160)}). Restore the run's "
            "config.toml and checkpoints as turnwise wrote them, or start a new run from this model: "
            f"model.name {folder}."
        ) from error


def read_state(folder: Path) -> State:
    """Read the state of a checkpoint; UserError if a file is missing or has changed."""
    try:
        recorded = json.loads((folder / "state.json").read_text())
        if recorded.pop("digest") != _digest_of(recorded):
            raise UserError(f"Checkpoint {folder} is damaged: state.json has changed.")
        for name, digest in recorded.pop("files").items():
            if not (folder / name).is_file():
                raise UserError(f"Checkpoint {folder} is damaged: {name} is missing.")
            if file_digest(folder / name) != digest:
                raise UserError(f"Checkpoint {folder} is damaged: {name} has changed.")
        if STEP_NAME.fullmatch(folder.name) and recorded["step"] != step_of(folder):
            raise UserError(f"Checkpoint {folder} is damaged: it is a copy of step {recorded['step']}.")
        return State(
            step=recorded["step"],
            skipped_steps=recorded["skipped_steps"],
            parts=recorded.get("parts", {}),
            version=recorded.get("version", 1),
        )
    except FileNotFoundError as error:
        raise UserError(f"Checkpoint {folder} is damaged: state.json is missing.") from error
    except OSError as error:
        raise UserError(f"Checkpoint {folder} cannot be read: {error.strerror or error}.") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"Checkpoint {folder} is damaged: state.json is not one that turnwise wrote.") from error


def _has_state(folder: Path, state: State) -> bool:
    """Return whether this state is saved there already; writing it again could only lose it."""
    try:
        return read_state(folder) == state
    except UserError:
        return False


def _write_state(folder: Path, state: State) -> None:
    files = {path.relative_to(folder).as_posix(): file_digest(path) for path in _files(folder)}
    recorded = {**asdict(state), "files": files}
    (folder / "state.json").write_text(json.dumps({**recorded, "digest": _digest_of(recorded)}, indent=1))
    for path in _files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    for directory in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        sync_folder(directory)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@contextmanager
def _numbered_errors() -> Iterator[None]:
    """Raise safetensors' errors of the operating system, which are only text, as OSError with a number."""
    try:
        yield
    except SafetensorError as error:
        if (match := re.search(r"os error (\d+)", str(error))) is None:
            raise
        number = int(match[1])
        raise OSError(number, os.strerror(number)) from error


def find_folder(folder: Path) -> Path:
    """Return a checkpoint's folder, or its old version if the run was killed while replacing it.

    The old version keeps its temporary name until the run is resumed: a reader must not rename what a running process
    may be writing.
    """
    old = _old(folder)
    return old if old.is_dir() and not folder.exists() else folder


def _old(target: Path) -> Path:
    return target.with_name(f"{OLD}{target.name}")


def _replace(temporary: Path, target: Path) -> None:
    """Rename over an existing checkpoint. Between the two renames, `find_folder` still finds the old one."""
    old = _old(target)
    if target.exists():
        _remove(old)
        target.rename(old)
    temporary.rename(target)
    sync_folder(target.parent)
    _remove(old)  # also left by a kill between the two renames


def _remove(path: Path) -> None:
    """Delete a folder, or the file that a user left in its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _digest_of(recorded: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(recorded, sort_keys=True).encode(), digest_size=16).hexdigest()
