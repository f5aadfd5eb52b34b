"""Names in settings, checked before torch is imported: that takes seconds, and a mistyped name should not."""

from pathlib import Path

from turnwise.config.load import Overrides, build
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.files.disk import check_can_create, wrap_disk_errors
from turnwise.files.run_folders import CONFIG_FILE, NOT_STARTED
from turnwise.models.loading.catalogue import TINY, model_names
from turnwise.models.loading.cuda import may_have_cuda, require_cuda
from turnwise.models.loading.model_files import check_model_files
from turnwise.models.settings import ModelConfig
from turnwise.run.find_source import find_data, find_run_or_none
from turnwise.text.suggestions import suggest

DEVICES = ("auto", "cpu", "cuda")


def check_device(model: ModelConfig) -> None:
    if model.device.partition(":")[0] not in DEVICES:
        raise UserError(f'Unknown model.device "{model.device}": use "auto", "cpu" or "cuda".')


def check_cuda(model: ModelConfig) -> None:
    """Raise UserError for the device cuda where torch cannot find one."""
    if model.device.partition(":")[0] == "cuda":
        require_cuda(may_have_cuda())


def check_before_torch(config: Config, *, resume: bool) -> None:
    """Check what of a run's model, engine, folder and stored episodes is known without torch."""
    check_model_name(config)
    check_cuda(config.model)
    config.engine.check()
    folder = Path(config.record.folder)
    if not resume:
        with wrap_disk_errors(folder, NOT_STARTED):
            check_can_create(folder)
    for source in config.data.sources:
        find_data(source)
    if config.data.sources:
        from turnwise.run.stored_sources import check_data  # imports numpy

        check_data(config, config.record.path if resume else None)


def check_served_model(overrides: Overrides) -> None:
    """Raise UserError if model.name of `turnwise serve` is missing, or neither a run nor a model."""
    config = build({}, overrides)
    names = [str(value) for key, value in overrides if key == "model.name"]
    if not names:
        raise UserError(
            f"There is no model to serve: add --model.name with a run or a model; {TINY}, the default elsewhere, is "
            "untrained."
        )
    check_cuda(config.model)
    if not any(find_run_or_none(name) for name in names):
        check_model_name(config)


def check_model_name(config: Config) -> None:
    """Raise UserError for a name that is neither in the catalogue nor the files of a model, and cannot be on the hub.

    `cluster plan` loads no model, so it also takes names of shapes, such as qwen2.5-7b.
    """
    name = config.model.name
    if name in model_names():
        return
    if name and (path := Path(name).expanduser()).exists():
        if not (path / CONFIG_FILE).is_file():  # the newest checkpoint of a run
            check_model_files(path)
        return
    if name.startswith((".", "~")) or Path(name).is_absolute():
        raise UserError(f"model.name: {name} does not exist. Check the path, or restore it if it was moved.")
    if "/" in name and not name.endswith(".gguf"):  # perhaps on the hub, which `check_hub` asks
        return
    if (run := Path(config.record.folder) / name) and (run / CONFIG_FILE).is_file():
        raise UserError(f'Unknown model "{name}": did you mean the run "{run}"?')
    raise UserError(
        f'Unknown model "{name}":{suggest(name, model_names())} '
        "(or give a hub name (owner/name), or a folder or .gguf file that exists)."
    )
