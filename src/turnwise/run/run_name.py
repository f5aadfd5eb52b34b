"""The folder of a run, and the names of runs over several seeds."""

from collections.abc import Sequence
from pathlib import Path

from turnwise.config.recording import RecordConfig
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.files.disk import unused_path
from turnwise.record.run_folder import refuse_used


def run_path(config: Config, environment: str, method: str) -> Path:
    """Return the run's folder: record.name in record.folder, or a name that is not used yet."""
    if config.record.path is not None:
        return config.record.path
    folder = Path(config.record.folder)
    return unused_path(folder / f"{environment}-{Path(config.model.name).stem}-{method}-seed{config.seed}")


def check_run_name(record: RecordConfig) -> None:
    """Raise UserError if a new run cannot have the name record.name."""
    name, path = record.name, record.path
    if name is None or path is None:
        return
    if not name.strip() or name in (".", "..") or set(name) & set("/\\\0\n"):
        raise UserError(f"record.name {name!r} is not a folder name. Remove /; record.folder sets the parent folder.")
    refuse_used(path)


def configs_of_seeds(config: Config, seeds: Sequence[int]) -> list[Config]:
    """Return the configuration of the run of each seed, which has the seed in its name."""
    name = config.record.name
    return [
        config.model_copy(
            update={
                "seed": seed,
                "record": config.record.model_copy(update={"name": f"{name}-seed{seed}" if name else None}),
            }
        )
        for seed in seeds
    ]
