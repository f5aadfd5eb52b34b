"""`turnwise export`: a run's model as a plain Hugging Face folder."""

import shutil
from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.models.saving import written_aside
from turnwise.recipes.sources import find_checkpoint, find_source
from turnwise.train.checkpoints import OWN_FILES


def export(run: str, to: Path) -> None:
    """Copies the run's last checkpoint, or RUN/checkpoints/NAME, without what only a resume needs.

    `to` is complete or not there.
    """
    source = find_checkpoint(*find_source(run))
    if to.exists():
        raise UserError(f"{to} exists: choose another folder, or remove it first")
    with written_aside(to) as aside:
        for file in source.iterdir():
            if file.name not in OWN_FILES:
                shutil.copy2(file, aside / file.name)
