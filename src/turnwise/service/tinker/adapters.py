"""The base model with a LoRA adapter per tenant.

One adapter is active at a time, so a tenant's results are those that it would get alone.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from turnwise.models.loading.load import LoadedModel
from turnwise.models.loading.lora import LoraSettings, add_lora
from turnwise.service.tinker.errors import RequestFailure

ALPHA = 32.0
"""LoRA scaling numerator of Tinker's API, whatever the rank."""
MAX_RANK = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraShape:
    """Adapters of equal shape have the same parameters."""

    rank: int
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True

    def check(self) -> None:
        if not 0 < self.rank <= MAX_RANK:
            raise RequestFailure(f"lora_config.rank is {self.rank}: use 1 to {MAX_RANK}.")
        if not (self.train_attn or self.train_mlp or self.train_unembed):
            raise RequestFailure("lora_config trains nothing: set train_attn, train_mlp or train_unembed.")


class SharedModel:
    """Adds, activates and removes adapters of the base model, whose own weights are never changed."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.model, self._name = loaded.model, loaded.name
        self.model.requires_grad_(False)
        self._layers = _find_layers(self.model)
        self._names = (f"adapter{number}" for number in count())
        self._active: str | None = None

    def add(self, shape: LoraShape, seed: int) -> str:
        """Add a new adapter and return its name. Initially it does not change the output."""
        name = next(self._names)
        settings = LoraSettings(rank=shape.rank, alpha=ALPHA, targets=self._targets(shape), seed=seed, name=name)
        with warnings.catch_warnings():  # of tied embeddings, and of an adapter besides others
            warnings.simplefilter("ignore", UserWarning)
            add_lora(self.model, self._name, settings)
        self._active = None
        self.activate(name)
        return name

    def _targets(self, shape: LoraShape) -> tuple[str, ...]:
        chosen = {"attn": shape.train_attn, "mlp": shape.train_mlp, "unembed": shape.train_unembed}
        targets = tuple(name for part, names in self._layers.items() if chosen[part] for name in names)
        if not targets:
            parts = ", ".join(f"train_{part}" for part, names in self._layers.items() if names)
            raise RequestFailure(f"lora_config trains no layer of {type(self.model).__name__}: set {parts}.")
        return targets

    @property
    def _has_adapters(self) -> bool:
        return bool(getattr(self.model, "peft_config", None))

    def activate(self, name: str | None) -> None:
        """Use an adapter from now on; None: the base model alone."""
        if name == self._active:
            return
        if name is None:
            self.model.disable_adapters()
        else:
            if self._active is None:
                self.model.enable_adapters()
            self.model.set_adapter(name)
        self._active = name

    def parameters(self, name: str) -> dict[str, nn.Parameter]:
        """Return an adapter's parameters by names that are the same for all adapters of its shape."""
        marker = f".{name}."
        return {
            full.replace(marker, "."): parameter
            for full, parameter in self.model.named_parameters()
            if marker in full and ".lora_" in full
        }

    def remove(self, name: str) -> None:
        """Delete an adapter and free its memory."""
        self.activate(name)
        self.activate(None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            self.model.delete_adapter(name)
        if self._has_adapters:
            self.model.disable_adapters()


def _find_layers(model: Any) -> dict[str, list[str]]:
    """Return the full names of the linear layers of the language model, by the part that they belong to."""
    output = model.get_output_embeddings()
    layers: dict[str, list[str]] = {"attn": [], "mlp": [], "unembed": []}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            owner = name.rpartition(".")[0]
            part = "unembed" if module is output else "attn" if "attn" in owner or "attention" in owner else "mlp"
            layers[part].append(name)
    return layers


@torch.no_grad()
def copy_tensors(parameters: Mapping[str, nn.Parameter], values: Mapping[str, Tensor]) -> None:
    """Copy values into parameters of the same names and shapes. Raises RequestFailure."""
    if parameters.keys() != values.keys():
        raise RequestFailure("The checkpoint has other layers than this model: create a model of its own from it.")
    for name, parameter in parameters.items():
        if parameter.shape != values[name].shape:
            raise RequestFailure("The checkpoint has another LoRA rank than this model: create one of its own from it.")
        parameter.copy_(values[name])
