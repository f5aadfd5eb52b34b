"""Find the run, checkpoint or stored episodes that a command names.

Imports neither torch nor a model, so that errors appear at once.
"""

from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.files.disk import check_can_create
from turnwise.files.run_folders import RUNS_FOLDER, find_run_folder

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


def find_data(source: str) -> Path:
    """Return the run, file or folder that a source names: a path, or the name of a run in runs/."""
    for path in (Path(source).expanduser(), Path(RUNS_FOLDER) / source):
        if path.exists():
            return path
    raise UserError(f"data.sources: {source} does not exist. Give a run, a file or a dataset folder.")


def check_free(folder: Path) -> None:
    """Raise UserError if the folder of a model or dataset to be written exists or cannot be created."""
    if folder.exists():
        raise UserError(f"{folder} already exists. Choose another folder, or remove it first.")
    try:
        check_can_create(folder)
    except OSError as error:
        raise UserError(f"Cannot write {folder} ({error.strerror}). Choose another folder.") from error
