"""A run's earlier policies, kept as opponents: past/step_000020 and so on, each a plain model folder.

Which of them count at a step follows from its number alone, so that a resumed run meets the same ones.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from turnwise.models.saving import save_model
from turnwise.record.disk import remove_folder, remove_rests
from turnwise.training.checkpoints import step_folders, step_of


class Snapshots:
    def __init__(self, folder: Path, *, every: int, keep: int, tokenizer: Any) -> None:
        self.folder, self.every, self.keep = folder, every, keep
        self._tokenizer = tokenizer

    def path(self, step: int) -> Path:
        return self.folder / f"step_{step:06d}"

    def due(self, step: int) -> bool:
        return step % self.every == 0

    def at(self, step: int) -> list[int]:
        """The steps of those that count once `step` steps are done: the last ones, the newest last."""
        newest = step // self.every * self.every
        first = newest - (self.keep - 1) * self.every
        return list(range(max(first, 0), newest + 1, self.every))

    def before(self, step: int) -> list[int]:
        """The last ones that are older than this step."""
        return self.at(step - 1)

    def save(self, model: Any, step: int) -> None:
        """Once a step; it is whole or not there."""
        if not self.path(step).exists():
            save_model(model, self._tokenizer, self.path(step))

    def drop_after(self, step: int) -> None:
        """Delete snapshots of steps that a resumed run repeats, and leftovers of kills."""
        remove_rests(self.folder)
        self._drop(each for each in self._found() if step_of(each) > step)

    def drop_unneeded(self, oldest: int) -> None:
        """Those that count no more, even for a run that goes on from the step `oldest`."""
        needed = min(self.before(oldest), default=0)
        self._drop(each for each in self._found() if step_of(each) < needed)

    def _found(self) -> list[Path]:
        return step_folders(self.folder)

    @staticmethod
    def _drop(folders: Iterable[Path]) -> None:
        for each in folders:
            remove_folder(each)
