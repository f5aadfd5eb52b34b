"""Low-rank adapters through peft: a small part that is trained beside a model that stays as it was.

The adapter lives inside the model's own layers, so engine and learner see one module; it is never merged in place. The
policy that a run began with is the same module with a copy of the adapter's first weights. On disk an adapter is a
folder in peft's own format.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from turnwise.core.errors import UserError
from turnwise.models.loading.pretrained import quiet_transformers

ADAPTER_CONFIG = "adapter_config.json"
RUN_BASE = "base"
"""A run's own copy of the base model, two folders above its adapters: it counts before what they name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    rank: int
    alpha: float
    targets: tuple[str, ...]
    """Names of layers; empty: every linear layer but the head."""
    seed: int
    """Of its first weights."""


def add_lora(model: Any, base: str, settings: LoraSettings) -> None:
    """Puts a fresh adapter into the model, which then trains that and nothing else. At first it changes nothing.

    `base`: the name or folder that the adapter says it belongs to.
    """
    _require_peft()
    import peft

    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # any number will do
        target_modules=list(settings.targets) or "all-linear",
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(settings.seed)
            model.add_adapter(config)
        set_base_model(model, base)
    except ValueError as error:
        raise UserError(
            f"lora.targets {', '.join(settings.targets)}: no such layers in {type(model).__name__}"
        ) from error


def set_base_model(model: Any, base: str) -> None:
    """Make the model's adapter name this base, where it is saved: a folder by its whole path."""
    for config in model.peft_config.values():
        config.base_model_name_or_path = str(Path(base).absolute()) if Path(base).is_dir() else base


def has_adapter(model: Any) -> bool:
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def copy_adapter(model: Any) -> dict[str, Tensor]:
    """A copy of the adapter's weights, by name: all that is trained of such a model."""
    return {name: each.detach().clone() for name, each in model.named_parameters() if each.requires_grad}


@contextmanager
def swap_adapter(model: Any, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside, the adapter has these weights. They are copied in place: the engine reads the same storage."""
    own = copy_adapter(model)
    _set_adapter(model, weights)
    try:
        yield
    finally:
        _set_adapter(model, own)


@torch.no_grad()
def _set_adapter(model: Any, weights: Mapping[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    for name, value in weights.items():
        parameters[name].copy_(value)


def is_adapter(folder: Path) -> bool:
    return (folder / ADAPTER_CONFIG).is_file()


def base_model_of(folder: Path) -> str:
    """The model that an adapter folder belongs to.

    The adapters of a run whose folder was moved name a base where it no longer is, and another run may be there now.
    """
    if (own := folder.absolute().parent.parent / RUN_BASE).is_dir() and (own.parent / "config.toml").is_file():
        return str(own)
    try:
        base = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / ADAPTER_CONFIG} cannot be read: save the adapter again") from error
    if not isinstance(base, str) or not base:
        raise UserError(f"{folder / ADAPTER_CONFIG} names no base model: write it into base_model_name_or_path")
    return base


def load_adapter(model: Any, folder: Path) -> None:
    """Puts a saved adapter into its base model, ready to be trained further."""
    _require_peft()
    with quiet_transformers(), _user_errors(folder):
        model.load_adapter(str(folder), is_trainable=True)


def merge_adapter(model: Any, folder: Path) -> Any:
    """A plain model: the base with what the adapter adds folded into its weights. The base is used up."""
    _require_peft()
    import peft

    with quiet_transformers(), _user_errors(folder):
        return peft.PeftModel.from_pretrained(model, str(folder)).merge_and_unload()


def _require_peft() -> None:
    if find_spec("peft") is None:
        raise UserError("adapters need peft: pip install 'turnwise[lora]'")


@contextmanager
def _user_errors(folder: Path) -> Iterator[None]:
    """The boundary to other people's files: a damaged one can fail anywhere in the readers, with any exception."""
    try:
        yield
    except Exception as error:
        raise UserError(f"the adapter {folder} cannot be read ({type(error).__name__}): save it again") from error
