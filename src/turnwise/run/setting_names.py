"""Names in settings, checked before torch is imported: that takes seconds, and a mistyped name should not."""

from pathlib import Path

from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.engine.engines import ENGINES
from turnwise.files.run_folders import CONFIG_FILE
from turnwise.models.loading.catalogue import model_names
from turnwise.record.trackers import check_trackers
from turnwise.text.suggestions import suggest

DEVICES = ("auto", "cpu", "cuda")


def check_names(config: Config) -> None:
    """Raise UserError for an unknown engine, device or tracker."""
    if config.engine.kind not in ENGINES:
        raise UserError(f'Unknown engine.kind "{config.engine.kind}":{suggest(config.engine.kind, ENGINES)}')
    if config.model.device.partition(":")[0] not in DEVICES:
        raise UserError(f'Unknown model.device "{config.model.device}": use "auto", "cpu" or "cuda"')
    check_trackers(config.record.trackers)


def check_model_name(config: Config) -> None:
    """Raise UserError for a name that is neither in the catalogue nor a file or folder, and cannot be on the hub.

    `cluster plan` loads no model, so it also takes names of shapes, such as qwen2.5-7b.
    """
    name = config.model.name
    if name in model_names() or (name and Path(name).expanduser().exists()):
        return
    if Path(name).is_absolute():
        raise UserError(f"model.name: {name} does not exist. Check the path, or restore it if it was moved.")
    if "/" in name and not name.endswith(".gguf"):  # perhaps on the hub, which `check_hub` asks
        return
    if (run := Path(config.record.folder) / name) and (run / CONFIG_FILE).is_file():
        raise UserError(f'Unknown model "{name}": did you mean the run "{run}"?')
    raise UserError(
        f'Unknown model "{name}":{suggest(name, model_names())} '
        "(or give a hub name (owner/name), or a folder or .gguf file that exists)"
    )
