"""Find the folders of runs and evaluations by path or name."""

from collections.abc import Sequence
from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.files.disk import LOCK_NAME, is_leftover
from turnwise.text.suggestions import suggest

RUNS_FOLDER = "runs"
CONFIG_FILE = "config.toml"
EVALUATION_FILE = "evaluation.toml"
METRICS_FILE = "metrics.jsonl"
NOT_STARTED = "start again, or choose another record.folder (nothing was started)"
"""Advice if the folder of a new run cannot be created."""


def find_run_folder(name: str, *, what: str = "run", markers: Sequence[str] = (CONFIG_FILE,)) -> Path:
    """Return the folder of a run, given its path or its name in runs/.

    `markers`: files of which such a folder has one. `what`: kind of folder, for the error.
    """
    for path in (Path(name).expanduser(), Path(RUNS_FOLDER) / name):
        if any((path / marker).is_file() for marker in markers):
            return path
    if Path(name).expanduser().is_dir():
        raise UserError(f"{name} is not a {what}: it has no {' or '.join(markers)}. Give the folder of one.")
    known = [path.parent.name for marker in markers for path in Path(RUNS_FOLDER).glob(f"*/{marker}")]
    raise UserError(f'No {what} "{name}" here or in {RUNS_FOLDER}/:{suggest(name, known)}')


def find_run_or_evaluation(name: str) -> Path:
    """Return the folder of a run or an evaluation, given its path or its name in runs/."""
    return find_run_folder(name, what="run or evaluation", markers=(CONFIG_FILE, EVALUATION_FILE))


def check_run_folder(path: Path) -> None:
    """Raise UserError if this is not the folder of a run."""
    if not (path / CONFIG_FILE).is_file():
        raise UserError(f"{path} is not a run folder (no {CONFIG_FILE}). Give the path of a run, e.g. runs/NAME.")


def refuse_foreign(path: Path) -> None:
    """Raise UserError if an evaluation cannot have this folder: it has files of something else."""
    if not path.exists() or (path / EVALUATION_FILE).exists():
        return
    if not path.is_dir():
        raise UserError(f"{path} is a file, not a folder. Choose another folder.")
    own_names = {LOCK_NAME, "models", "trajectories"}  # left by a start that was killed before it wrote its plan
    foreign = [file for file in path.iterdir() if file.name not in own_names and not is_leftover(file)]
    if foreign:
        raise UserError(f"{path} has other files ({foreign[0].name}). Choose another folder.")
