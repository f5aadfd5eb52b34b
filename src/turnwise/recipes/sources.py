"""Whose model a command takes: a run's newest checkpoint, or one that is named."""

from pathlib import Path

from turnwise.config.load import find_run
from turnwise.core.errors import UserError
from turnwise.core.names import nearest
from turnwise.train.checkpoints import last_checkpoint, read_state

CHECKPOINTS = "checkpoints"


def find_source(source: str) -> tuple[Path, str | None]:
    """The run, and the name of a checkpoint where `source` is RUN/checkpoints/NAME."""
    path = Path(source)
    if path.parent.name == CHECKPOINTS:
        return find_run(str(path.parent.parent)), path.name
    return find_run(source), None


def model_of(name: str) -> str:
    """`model.name` may be a run's folder: its newest checkpoint, then."""
    folder = Path(name).expanduser()
    if not (folder / CHECKPOINTS).is_dir() or not (folder / "config.toml").is_file():
        return name
    return str(find_checkpoint(folder, None))


def find_checkpoint(run: Path, name: str | None) -> Path:
    """The checkpoint of that name, whole; None: the newest."""
    folder = run / CHECKPOINTS
    if name is None:
        return last_checkpoint(folder)
    names = sorted(path.name for path in folder.glob("[!.]*"))
    if name not in names:
        raise UserError(f'{run} has no checkpoint "{name}":{nearest(name, names)}')
    read_state(folder / name)
    return folder / name
