"""Find the run or checkpoint that a command names. Imports neither torch nor a model, so that errors appear at once."""

from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.files.run_folders import find_run_folder

CHECKPOINTS = "checkpoints"


def find_source(source: str) -> tuple[Path, str | None]:
    """Return the run, and the name of the checkpoint if `source` is RUN/checkpoints/NAME."""
    path = Path(source)
    if path.parent.name == CHECKPOINTS:
        return find_run_folder(str(path.parent.parent)), path.name
    return find_run_folder(source), None


def find_run_or_none(source: str) -> tuple[Path, str | None] | None:
    """Return the run that `source` names and the checkpoint if it names one; None if it is not a run."""
    try:
        return find_source(source)
    except UserError:
        return None
