"""Copy weights into a model's own parameters, whose storage an engine and a learner may share.

A frozen parameter is copied once: a second write would make the image encoder drop features that are still valid.
"""

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from turnwise.core.protocols import WeightSource


class SeenTensors:
    """Remembers tensors by name and version, which counts in-place writes. Holds weak references only."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[weakref.ref[Tensor], int]] = {}

    def add(self, name: str, tensor: Tensor) -> None:
        self._seen[name] = weakref.ref(tensor), tensor._version

    def has(self, name: str, tensor: Tensor) -> bool:
        """Return whether this very tensor was added and has not been written since."""
        seen = self._seen.get(name)
        return seen is not None and seen[0]() is tensor and seen[1] == tensor._version


class WeightCopier:
    """Copies each version of a policy's weights into one model. Skips frozen parameters that the model already has."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._sources, self._copies = SeenTensors(), SeenTensors()
        self.copied_bytes = 0

    @torch.no_grad()
    def copy(self, weights: WeightSource) -> None:
        for name, own, new in _pair_parameters(self._model, weights):
            if own is new or (self._sources.has(name, new) and self._copies.has(name, own)):
                continue
            own.copy_(new)
            self.copied_bytes += own.nbytes
            if not new.requires_grad:
                self._sources.add(name, new)
                self._copies.add(name, own)


@torch.no_grad()
def copy_parameters(model: Any, weights: WeightSource) -> None:
    """Copy all weights into the model's parameters."""
    for _, own, new in _pair_parameters(model, weights):
        if own is not new:
            own.copy_(new)


def _pair_parameters(model: Any, weights: WeightSource) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield name, parameter and new value. Raises ValueError if the names differ."""
    current, new = dict(model.named_parameters()), dict(weights.named_parameters())
    if current.keys() != new.keys():
        raise ValueError(f"weights differ in names: {sorted(current.keys() ^ new.keys())[:3]}")
    for name, parameter in current.items():
        yield name, parameter, new[name]
