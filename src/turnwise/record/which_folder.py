"""Which folder a person means: a path, or a name in runs/."""

from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.core.names import nearest
from turnwise.record.evaluation_folder import PLAN

FOLDER = "runs"
SIGNS = ("config.toml", PLAN)
"""The files by which a run and an evaluation are known."""


def recorded_folder(name: str, folder: str = FOLDER) -> Path:
    """The folder of a run or of an evaluation."""
    for path in (Path(name).expanduser(), Path(folder) / name):
        if any((path / sign).is_file() for sign in SIGNS):
            return path
    known = [path.parent.name for sign in SIGNS for path in Path(folder).glob(f"*/{sign}")]
    raise UserError(f'no run or evaluation "{name}" here or in {folder}/:{nearest(name, known)}')
