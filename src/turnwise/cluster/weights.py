"""Tensors between processes: as numpy arrays, which Ray writes once and shares on a machine."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy
import ray
import torch
from ray.util.serialization import register_serializer
from torch import Tensor

from turnwise.core.protocols import WeightSource

PackedWeights = dict[str, tuple[numpy.ndarray, str]]
"""By parameter name: the array, and the torch dtype that it is a view of (numpy has no bfloat16)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWeights:
    """Weights in the object store. Engine replicas load them without passing them through this process."""

    ref: Any
    """`ray.ObjectRef` of `PackedWeights`."""

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        return ReceivedWeights(ray.get(self.ref)).named_parameters()


@dataclass(frozen=True, slots=True)
class ReceivedWeights:
    """Weights as they arrive: read-only views of the object store."""

    packed: PackedWeights

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        for name, (array, dtype) in self.packed.items():
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", UserWarning
                )  # torch has no read-only tensors; these are never written to
                yield name, unpack_tensor(array, dtype)


def put_weights(weights: WeightSource) -> RemoteWeights:
    """Copy weights into the object store, unless they are there already."""
    return weights if isinstance(weights, RemoteWeights) else RemoteWeights(ref=ray.put(pack_weights(weights)))


def pack_weights(weights: WeightSource) -> PackedWeights:
    return {name: pack_tensor(tensor) for name, tensor in weights.named_parameters()}


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
