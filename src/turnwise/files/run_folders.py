"""Find the folders of runs and evaluations by path or name."""

from collections.abc import Sequence
from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.text.suggestions import suggest

RUNS_FOLDER = "runs"
CONFIG_FILE = "config.toml"


def find_run_folder(
    name: str, folder: str = RUNS_FOLDER, *, what: str = "run", markers: Sequence[str] = (CONFIG_FILE,)
) -> Path:
    """Return the folder of a run, given its path or its name in `folder`.

    `markers`: files of which such a folder has one. `what`: kind of folder, for the error.
    """
    for path in (Path(name).expanduser(), Path(folder) / name):
        if any((path / marker).is_file() for marker in markers):
            return path
    known = [path.parent.name for marker in markers for path in Path(folder).glob(f"*/{marker}")]
    raise UserError(f'No {what} "{name}" here or in {folder}/:{suggest(name, known)}')


def check_run_folder(path: Path) -> None:
    """Raise UserError if this is not the folder of a run."""
    if not (path / CONFIG_FILE).is_file():
        raise UserError(f"{path} is not a run folder (no {CONFIG_FILE}). Give the path of a run, e.g. runs/NAME.")
