"""Tensors between processes: as numpy arrays, which Ray writes once and shares on a machine."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy
import ray
import torch
from ray.util.serialization import register_serializer
from torch import Tensor

from turnwise.core.protocols import WeightSource
from turnwise.models.weights import SeenTensors

PackedWeights = dict[str, tuple[numpy.ndarray, str]]
"""By parameter name: the array, and the torch dtype that it is a view of (numpy has no bfloat16)."""


class StoredWeights:
    """Weights in the object store. A process reads them once, so that each call yields the same tensors."""

    def __init__(self, ref: Any) -> None:
        self.ref = ref
        """`ray.ObjectRef` of `PackedWeights`."""
        self._received: dict[str, Tensor] | None = None

    def __reduce__(self) -> Any:
        """Pickle the reference alone, without the tensors."""
        return StoredWeights, (self.ref,)

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        if self._received is None:
            self._received = unpack_weights(ray.get(self.ref))
        return self._received.items()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWeights:
    """Weights in the object store. Engine replicas load them without passing them through this process.

    `frozen` is the same object in all versions until a frozen parameter is written, as when a checkpoint is loaded.
    """

    trained: StoredWeights
    frozen: StoredWeights

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        return chain(self.frozen.named_parameters(), self.trained.named_parameters())


class WeightStore:
    """Puts each version of the weights into the object store. Frozen ones are put again only after a write to them."""

    def __init__(self) -> None:
        self._frozen: StoredWeights | None = None
        self._seen = SeenTensors()

    def put(self, weights: WeightSource) -> RemoteWeights:
        """Return the weights in the object store. Those of learner ranks are there already."""
        if isinstance(weights, RemoteWeights):
            return weights
        named = list(weights.named_parameters())
        frozen = [(name, parameter) for name, parameter in named if not parameter.requires_grad]
        if self._frozen is None or not all(self._seen.has(*entry) for entry in frozen):
            self._frozen = put_weights(frozen)
            for entry in frozen:
                self._seen.add(*entry)
        trained = put_weights((name, parameter) for name, parameter in named if parameter.requires_grad)
        return RemoteWeights(trained=trained, frozen=self._frozen)


@dataclass(frozen=True, slots=True)
class ReceivedWeights:
    """Tensors by parameter name as a `WeightSource`."""

    tensors: Mapping[str, Tensor]

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        return self.tensors.items()


def put_weights(named: Iterable[tuple[str, Tensor]]) -> StoredWeights:
    return StoredWeights(ray.put(pack_weights(named)))


def pack_weights(named: Iterable[tuple[str, Tensor]]) -> PackedWeights:
    return {name: pack_tensor(tensor) for name, tensor in named}


def unpack_weights(packed: PackedWeights) -> dict[str, Tensor]:
    """Return the weights as read-only views of the object store."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch has no read-only tensors; these are never written to
        return {name: unpack_tensor(array, dtype) for name, (array, dtype) in packed.items()}


def pack_tensor(tensor: Tensor) -> tuple[numpy.ndarray, str]:
    tensor = tensor.detach().cpu()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy(), dtype


def unpack_tensor(array: numpy.ndarray, dtype: str) -> Tensor:
    return torch.from_numpy(array).view(getattr(torch, dtype))


def send_tensors_as_arrays() -> None:
    """Make Ray serialize the tensors that this process sends as numpy arrays, which is several times as fast. Call it
    after Ray has started.

    Tensors arrive on the CPU, as copies, since a loss may write to its inputs. Packed weights are not copied.
    """
    register_serializer(Tensor, serializer=pack_tensor, deserializer=_copy_tensor)


def _copy_tensor(packed: tuple[numpy.ndarray, str]) -> Tensor:
    array, dtype = packed
    return unpack_tensor(array.copy(), dtype)
