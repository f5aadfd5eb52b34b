"""LoRA adapters through peft.

The adapter lives inside the model's layers, so engine and learner share one module; it is never merged in place. The
reference policy is the same module with a copy of the adapter's initial weights. On disk an adapter is a folder in
peft's format.
"""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from turnwise.core.errors import UserError
from turnwise.models.loading.model_files import ADAPTER_CONFIG
from turnwise.models.loading.pretrained import quiet_transformers
from turnwise.models.vision.encoder import image_encoder

RUN_BASE = "base"
"""Run subfolder with a copy of the base model. It takes precedence over the base that an adapter of the run names."""


LoraPart = Literal["language", "vision", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    rank: int
    alpha: float
    targets: tuple[str, ...]
    """Names of the target layers; empty: every linear layer but the output head."""
    seed: int
    """Seed of the initial weights."""
    part: LoraPart = "language"
    """Part of a vision-language model whose layers are targets."""
    name: str = "default"
    """Name of the adapter in the model."""


def add_lora(model: Any, base: str, settings: LoraSettings) -> None:
    """Add a new adapter, the only part of the model that is then trained. Initially it does not change the output.

    `base`: name or folder of the base model, stored with the adapter.
    """
    _require_peft()
    import peft

    _check_targets(model, settings.targets)
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # peft accepts any number
        target_modules=_target_modules(model, settings),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(settings.seed)
            model.add_adapter(config, settings.name)
        set_base_model(model, base)
    except ValueError as error:
        raise UserError(
            f"lora.targets {', '.join(settings.targets)} are not all linear layers: set them to some of "
            f"{_linear_names(model)}"
        ) from error


def _target_modules(model: Any, settings: LoraSettings) -> list[str] | str:
    """Return the target layers: by their full names in a model that reads images, where only a part has targets."""
    if image_encoder(model) is None:
        if settings.part != "language":
            raise UserError("model.train_vision only needs a model that reads images. Remove it.")
        return list(settings.targets) or "all-linear"
    language = {id(module) for module in model.base_model.get_decoder().modules()}
    parts = {"language": (True,), "vision": (False,), "both": (True, False)}[settings.part]
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not model.get_output_embeddings()
        if (id(module) in language) in parts
        if not settings.targets or any(f".{name}".endswith(f".{target}") for target in settings.targets)
    ]
    if not names:
        raise UserError(
            f"No layers named {', '.join(settings.targets)} in the {settings.part} part: set model.train_vision true."
        )
    return names


def _check_targets(model: Any, targets: Sequence[str]) -> None:
    """Raise for a target that matches no layer: peft accepts it if another target matches."""
    names = [f".{name}" for name, _ in model.named_modules()]
    if unknown := [target for target in targets if not any(name.endswith(f".{target}") for name in names)]:
        raise UserError(
            f"No layers named {', '.join(unknown)} in {type(model).__name__}: set lora.targets to some of "
            f"{_linear_names(model)}"
        )


def _linear_names(model: Any) -> str:
    """Return the names of the linear layers, each once, in the order of the model."""
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    return ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in layers))


def set_base_model(model: Any, base: str) -> None:
    """Store the base model's name in the adapter; a folder is stored by its absolute path."""
    for config in model.peft_config.values():
        config.base_model_name_or_path = str(Path(base).absolute()) if Path(base).is_dir() else base


def has_adapter(model: Any) -> bool:
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def copy_adapter(model: Any) -> dict[str, Tensor]:
    """Return a copy of the adapter's weights by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters() if parameter.requires_grad}


@contextmanager
def swap_adapter(model: Any, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Give the adapter these weights within the block, in place: the engine reads the same storage."""
    current = copy_adapter(model)
    _set_adapter(model, weights)
    try:
        yield
    finally:
        _set_adapter(model, current)


@torch.no_grad()
def _set_adapter(model: Any, weights: Mapping[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    for name, value in weights.items():
        parameters[name].copy_(value)


def base_model_of(folder: Path) -> str:
    """Return the base model of an adapter folder.

    The run's own copy comes first: if the run folder was moved, the stored path is stale and may belong to another run.
    """
    run_base = folder.absolute().parent.parent / RUN_BASE
    if run_base.is_dir() and (run_base.parent / "config.toml").is_file():
        return str(run_base)
    try:
        base = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"Cannot read {folder / ADAPTER_CONFIG}: save the adapter again.") from error
    if not isinstance(base, str) or not base:
        raise UserError(f"{folder / ADAPTER_CONFIG} names no base model: set base_model_name_or_path in it.")
    return base


def load_adapter(model: Any, folder: Path) -> None:
    """Load a saved adapter into its base model, ready for further training."""
    _require_peft()
    with quiet_transformers(), _user_errors(folder):
        model.load_adapter(str(folder), is_trainable=True)


def merge_adapter(model: Any, folder: Path) -> Any:
    """Return the base model with the adapter merged into its weights. The base model must not be used afterwards."""
    _require_peft()
    import peft

    with quiet_transformers(), _user_errors(folder), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)  # read by peft
        return peft.PeftModel.from_pretrained(model, str(folder)).merge_and_unload()


def _require_peft() -> None:
    if find_spec("peft") is None:
        raise UserError("Adapters need peft: run `pip install 'turnwise[lora]'`")


@contextmanager
def _user_errors(folder: Path) -> Iterator[None]:
    """Turn any exception into a UserError: a damaged file can fail anywhere in the readers, in any way."""
    try:
        yield
    except Exception as error:
        raise UserError(f"Cannot read the adapter {folder} ({type(error).__name__}): save it again.") from error
