"""The learner's state in a checkpoint, besides the policy's weights: optimizers, critic, reference adapter.

A whole learner writes a file, sharded ranks a folder. Each reads both, so a run can continue with any number of ranks.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from turnwise.models.sharding import Sharding

STATE_FILE = "learner.safetensors"
STATE_FOLDER = "learner"


def save_tensors(tensors: dict[str, Tensor], folder: Path) -> None:
    """Write the state of a whole learner."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / STATE_FILE)


def save_shards(tensors: dict[str, Tensor], folder: Path) -> None:
    """Write the state with torch.distributed.checkpoint, each rank its shards."""
    with _disk_errors():
        dcp.save(tensors, checkpoint_id=folder / STATE_FOLDER)


def load_tensors(folder: Path, sharding: Sharding | None = None) -> dict[str, Tensor]:
    """Read a state. With `sharding` all ranks call it, and get their shards of tensors that have a dimension."""
    if not (folder / STATE_FILE).exists():
        return _load_shards(folder / STATE_FOLDER, sharding)
    with safe_open(folder / STATE_FILE, framework="pt") as file:
        names = list(file.keys())
        return {name: _shard(file.get_tensor(name), sharding) for name in names}


def _shard(tensor: Tensor, sharding: Sharding | None) -> Tensor:
    return tensor if sharding is None or not tensor.ndim else sharding.shard(tensor)


def _load_shards(folder: Path, sharding: Sharding | None) -> dict[str, Tensor]:
    """Read what any number of ranks wrote."""
    stored = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    tensors = {name: _allocate(tensor, sharding) for name, tensor in stored.items()}
    with _disk_errors(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # a whole learner has no process group
        dcp.load(tensors, checkpoint_id=folder, no_dist=sharding is None)
    return tensors


def _allocate(stored: object, sharding: Sharding | None) -> Tensor:
    assert isinstance(stored, TensorStorageMetadata)
    shape, dtype = stored.size, stored.properties.dtype
    return torch.empty(shape, dtype=dtype) if sharding is None or not shape else sharding.empty(shape, dtype)


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Raise the operating system's error that a rank met instead of the wrapper around the errors of all ranks."""
    try:
        yield
    except CheckpointException as error:
        for cause, _ in error.failures.values():
            if isinstance(cause, OSError):
                raise cause from error
        raise
