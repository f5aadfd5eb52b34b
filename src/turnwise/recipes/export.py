"""`turnwise export`: a run's model as a plain Hugging Face folder."""

import shutil
from pathlib import Path

from turnwise.config.load import find_run
from turnwise.core.errors import UserError
from turnwise.models.saving import written_aside
from turnwise.train.checkpoints import OWN_FILES, last_checkpoint


def export(run: str, to: Path) -> None:
    """Copies the last checkpoint without what only a resume needs; `to` is complete or not there."""
    source = last_checkpoint(find_run(run) / "checkpoints")
    if to.exists():
        raise UserError(f"{to} exists: choose another folder, or remove it first")
    with written_aside(to) as aside:
        for file in source.iterdir():
            if file.name not in OWN_FILES:
                shutil.copy2(file, aside / file.name)
