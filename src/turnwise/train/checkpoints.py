"""Checkpoints: written aside, then renamed; a half-written or damaged one is never loaded.

    checkpoints/step_000010/  model.safetensors, config.json, tokenizer... (a plain Hugging Face folder)
                              learner.safetensors (optimisers, critic), state.json (numbers, and the files' hashes)
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from turnwise.core.errors import UserError
from turnwise.models.loading import LoadedModel
from turnwise.models.quiet import without_progress_bars
from turnwise.record.disk import disk_errors
from turnwise.train.learner import LocalLearner, load_in_place

BEST = "best"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where training stood: `step` steps were done."""

    step: int
    best_success: float | None
    """On the validation split, of the checkpoint named "best"."""
    skipped_steps: int


class Checkpoints:
    def __init__(self, folder: Path, *, keep_last: int, tokenizer: Any) -> None:
        self.folder, self.keep_last, self.tokenizer = folder, keep_last, tokenizer

    def save(self, learner: LocalLearner, state: State, *, best: bool = False) -> Path:
        """Writes the checkpoint of this step, and gives up older ones beyond the last n."""
        target = self.folder / (BEST if best else f"step_{state.step:06d}")
        with disk_errors(target, f"continue with --resume {self.folder.parent} (earlier checkpoints are safe)"):
            aside = self.folder / f".writing-{target.name}"
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            with without_progress_bars():
                learner.model.save_pretrained(aside)
                self.tokenizer.save_pretrained(aside)
            tensors = {name: tensor.contiguous() for name, tensor in learner.state_dict()["tensors"].items()}
            save_file(tensors, aside / "learner.safetensors")
            _write_state(aside, state)
            _replace(aside, target)
        if not best:
            for old in self.steps()[: -self.keep_last]:
                shutil.rmtree(old)
        return target

    def steps(self) -> list[Path]:
        return sorted(self.folder.glob("step_*"))

    def newest(self) -> tuple[Path, State] | None:
        """The newest checkpoint that is whole; None where there is none."""
        damaged = []
        for folder in reversed(self.steps()):
            try:
                return folder, read_state(folder)
            except UserError as error:
                damaged.append(str(error))
        if damaged:
            raise UserError(f"no checkpoint in {self.folder} is whole ({damaged[0]}); start a new run with --from")
        return None


def restore(folder: Path, learner: LocalLearner, state: State, load: Callable[[str], LoadedModel]) -> None:
    """Puts the checkpoint's weights into the storage that learner and engine share.

    `load` reads the folder as any model: the names inside a file may differ from the parameters'.
    """
    load_in_place(learner.model, dict(load(str(folder)).model.named_parameters()))
    tensors = load_file(folder / "learner.safetensors")
    learner.load_state_dict({"tensors": tensors, "skipped_steps": state.skipped_steps})
    learner.training_step = state.step


def read_state(folder: Path) -> State:
    """The state of a whole checkpoint; UserError if a file is missing or was changed."""
    try:
        recorded = json.loads((folder / "state.json").read_text())
        for name, digest in recorded.pop("files").items():
            if _digest(folder / name) != digest:
                raise UserError(f"checkpoint {folder} is damaged: {name} is not what was written")
        return State(**recorded)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"checkpoint {folder} is damaged: {error}") from error


def _write_state(folder: Path, state: State) -> None:
    files = {path.name: _digest(path) for path in sorted(folder.iterdir()) if path.is_file()}
    values = {"step": state.step, "best_success": state.best_success, "skipped_steps": state.skipped_steps}
    (folder / "state.json").write_text(json.dumps({**values, "files": files}, indent=1))
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _replace(aside: Path, target: Path) -> None:
    """Renames over what may be there; at every moment one of the two is whole."""
    if target.exists():
        old = target.with_name(f".old-{target.name}")
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
        aside.rename(target)
        shutil.rmtree(old)
    else:
        aside.rename(target)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
