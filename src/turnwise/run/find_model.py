"""Find the model that a command names: a run's newest checkpoint, or a named one."""

from contextlib import suppress
from pathlib import Path

from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.models.loading.model_files import is_adapter
from turnwise.run.find_source import CHECKPOINTS
from turnwise.text.suggestions import suggest
from turnwise.training.checkpoints import OLD, find_folder, last_checkpoint, read_state, step_folders


def resolve_model_name(name: str) -> str:
    """Return the newest checkpoint if `model.name` is a run's folder, else the name itself."""
    folder = Path(name).expanduser()
    if folder.parent.name == CHECKPOINTS and (model_folder := find_folder(folder)) != folder:
        return str(model_folder)
    if not (folder / CHECKPOINTS).is_dir() or not (folder / "config.toml").is_file():
        return name
    return str(find_checkpoint(folder, None))


def use_own_adapter(config: Config, run: Path) -> Config:
    """Return the configuration with a checkpoint of `run` as its model, if the run continues another run's adapter.

    That adapter may be gone, while the run's checkpoints hold all that resuming it needs.
    """
    if config.lora.rank:
        return config
    for folder in filter(is_adapter, reversed(step_folders(run / CHECKPOINTS))):
        with suppress(UserError):  # a damaged checkpoint is reported where training state is restored
            read_state(folder)
            return config.model_copy(update={"model": config.model.model_copy(update={"name": str(folder)})})
    return config


def find_checkpoint(run: Path, name: str | None) -> Path:
    """Return the checkpoint of that name, or the newest for None, after checking that it is complete."""
    folder = run / CHECKPOINTS
    if name is None:
        return last_checkpoint(folder)
    model_folder = find_folder(folder / name)
    if not model_folder.is_dir():
        names = sorted(path.name.removeprefix(OLD) for path in (*folder.glob("[!.]*"), *folder.glob(f"{OLD}*")))
        raise UserError(f'{run} has no checkpoint "{name}":{suggest(name, names)}')
    read_state(model_folder)
    return model_folder
