"""Publishing weights to vLLM: the learner's parameters under their Hugging Face names.

They travel through a safetensors file, in shared memory if there is room. On one GPU, vLLM reads the learner's tensors
in place (CUDA IPC). A LoRA adapter is published as an adapter to vLLM in this process, and merged for servers.

A frozen vision tower is published once. vLLM keeps the weights of layers that an update does not contain, but joins
layers such as those of queries, keys and values into one, so no smaller part could be left out.
"""

import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from turnwise.core.protocols import WeightSource
from turnwise.models.weights import SeenTensors

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "turnwise-vllm-"
DRIVER_VARIABLE = "TURNWISE_VLLM_DRIVER"
"""Environment variable with the id of the process that started vLLM, which does not outlive it."""
ADAPTER = "default"
"""Name that peft gives to the adapter of a model."""


class PublishedWeights(Protocol):
    @property
    def version(self) -> int: ...

    @property
    def adapter(self) -> Path | None:
        """Folder of a LoRA adapter in peft's format, for the base model of `update_info`; None: there is none."""
        ...

    @property
    def frozen_part(self) -> int | None:
        """Number of the frozen part, which changes with its weights; None: there is none."""
        ...

    def update_info(self, *, has_frozen: bool = False) -> dict[str, Any]:
        """Return the argument of vLLM's `update_weights`. `has_frozen`: without the frozen part."""
        ...


class FrozenVision:
    """Separates a frozen vision tower from the other parameters, and numbers it: a new number after each change."""

    def __init__(self, names: Collection[str]) -> None:
        """`names`: parameters of the vision tower and its projection, frozen or not."""
        self._names, self._seen = names, SeenTensors()
        self.number = 0

    def split(self, parameters: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the parameters of the frozen tower, none if it is trained, and all others."""
        tower = {name: parameter for name, parameter in parameters.items() if name in self._names}
        if any(parameter.requires_grad for parameter in tower.values()):
            return {}, dict(parameters)
        if not all(self._seen.has(*item) for item in tower.items()):
            self.number += 1
            for item in tower.items():
                self._seen.add(*item)
        return tower, {name: parameter for name, parameter in parameters.items() if name not in tower}


class Publisher(Protocol):
    """Makes weights available to vLLM. `backend` is the name of vLLM's weight transfer backend that reads them."""

    @property
    def backend(self) -> str: ...

    @property
    def latest(self) -> PublishedWeights | None: ...

    @property
    def published_bytes(self) -> int:
        """Bytes of all weights that were written, or handed over in place."""
        ...

    def write(self, version: int, weights: WeightSource) -> PublishedWeights: ...

    def keep(self, weights: Any) -> None:
        """Make this the latest version, which a restarted engine loads, and delete the one before."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFile:
    version: int
    path: Path
    adapter: Path | None = None
    frozen_path: Path | None = None
    frozen_part: int | None = None

    def update_info(self, *, has_frozen: bool = False) -> dict[str, Any]:
        frozen = {} if has_frozen or self.frozen_path is None else {"frozen_path": str(self.frozen_path)}
        return {"path": str(self.path)} | frozen


class FilePublisher:
    """Writes each version to a file; see `engine/vllm/worker.py` for the reader."""

    backend = "turnwise"

    def __init__(
        self, model: Any, parent: Path | None = None, *, merges: bool = True, vision: Collection[str] = ()
    ) -> None:
        """`parent`: folder for the files; None: shared memory if there is room, else the temporary folder.

        `merges`: add a LoRA adapter to the weights; else it is published apart from its base, which is written once.
        `vision`: names of the vision tower's parameters.
        """
        parent = parent or _default_parent(model)
        _remove_orphans(parent)
        self._adapter = adapter_layers(model)
        self._config = None if merges or not self._adapter else model.peft_config[ADAPTER]
        self._folder = tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", dir=parent)
        Path(self._folder.name).chmod(0o755)  # a server may run as another user
        self._vision = FrozenVision(vision)
        self.latest: WeightFile | None = None
        self.published_bytes = 0

    def write(self, version: int, weights: WeightSource) -> WeightFile:
        folder, parameters = Path(self._folder.name), dict(weights.named_parameters())
        if self._config is None:
            frozen, others = self._vision.split(parameters)
            path = folder / f"version-{version}.safetensors"
            self._save(dict(merge_adapter(others, self._adapter)), path)
            if not frozen:
                return WeightFile(version=version, path=path)
            frozen_path = folder / f"frozen-{self._vision.number}.safetensors"
            if not frozen_path.exists():
                self._save(dict(merge_adapter(frozen, self._adapter)), frozen_path)
            return WeightFile(version=version, path=path, frozen_path=frozen_path, frozen_part=self._vision.number)
        base, adapter = folder / "base.safetensors", folder / f"version-{version}"
        if not base.exists():
            self._save(
                {base_name(name): parameter for name, parameter in parameters.items() if not _is_update(name)}, base
            )
        self._config.save_pretrained(str(adapter))
        updates = {name: parameter for name, parameter in parameters.items() if _is_update(name)}
        renamed = {f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}": update for name, update in updates.items()}
        self._save(renamed, adapter / "adapter_model.safetensors")
        return WeightFile(version=version, path=base, adapter=adapter)

    def keep(self, weights: WeightFile) -> None:
        old, self.latest = self.latest, weights
        if old is not None and old.path != weights.path:
            old.path.unlink(missing_ok=True)
        if old is not None and old.frozen_path is not None and old.frozen_path != weights.frozen_path:
            old.frozen_path.unlink(missing_ok=True)
        if old is not None and old.adapter is not None and old.adapter != weights.adapter:
            shutil.rmtree(old.adapter, ignore_errors=True)

    def _save(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
        path.chmod(0o644)  # safetensors makes files that only their owner can read
        self.published_bytes += path.stat().st_size


def _default_parent(model: Any) -> Path:
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    temporary = Path(tempfile.gettempdir())
    try:
        free = shutil.disk_usage(SHARED_MEMORY).free
    except OSError:  # not Linux
        return temporary
    return SHARED_MEMORY if free > 4 * size else temporary  # two versions exist while one replaces the other


def _remove_orphans(parent: Path) -> None:
    """Delete the files of processes that were killed: in shared memory they would occupy it until the next boot."""
    for folder in parent.glob(f"{PREFIX}*-*"):
        process = folder.name.removeprefix(PREFIX).partition("-")[0]
        if process.isdecimal() and not Path(f"/proc/{process}").exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTensors:
    """Handles of the learner's own tensors on this GPU. A restarted engine reads their current values."""

    version: int
    tensors: tuple[tuple[str, Tensor], ...]
    frozen: tuple[tuple[str, Tensor], ...] = ()
    frozen_part: int | None = None
    adapter: None = None

    def update_info(self, *, has_frozen: bool = False) -> dict[str, Any]:
        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        tensors = self.tensors if has_frozen else (*self.frozen, *self.tensors)
        return {
            "names": [name for name, _ in tensors],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in tensors],
            "shapes": [list(tensor.shape) for _, tensor in tensors],
            "ipc_handles": [{str(device.uuid): reduce_tensor(tensor)[1]} for _, tensor in tensors],
        }


class IpcPublisher:
    """Hands over the learner's tensors by CUDA IPC, with vLLM's own backend."""

    backend = "ipc"

    def __init__(self, *, vision: Collection[str] = ()) -> None:
        """`vision`: names of the vision tower's parameters."""
        self._vision = FrozenVision(vision)
        self.latest: SharedTensors | None = None
        self.published_bytes = 0

    def write(self, version: int, weights: WeightSource) -> SharedTensors:
        frozen, others = map(_share, self._vision.split(dict(weights.named_parameters())))
        torch.cuda.synchronize()
        part = self._vision.number if frozen else None
        has_frozen = self.latest is not None and self.latest.frozen_part == part
        new = others if has_frozen else (*frozen, *others)
        self.published_bytes += sum(tensor.nbytes for _, tensor in new)
        return SharedTensors(version=version, tensors=others, frozen=frozen, frozen_part=part)

    def keep(self, weights: SharedTensors) -> None:
        self.latest = weights


def _share(parameters: Mapping[str, Tensor]) -> tuple[tuple[str, Tensor], ...]:
    return tuple((checkpoint_name(name), parameter.detach().contiguous()) for name, parameter in parameters.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterLayer:
    scaling: float
    transposed: bool
    """Whether the layer stores its weight as [in, out]."""


def adapter_layers(model: Any) -> dict[str, AdapterLayer]:
    """Return the layers with a LoRA adapter by name; empty without an adapter."""
    return {
        name: AdapterLayer(scaling=layer.scaling[ADAPTER], transposed=layer.fan_in_fan_out)
        for name, layer in model.named_modules()
        if hasattr(layer, "lora_A")
    }


@torch.no_grad()
def merge_adapter(
    parameters: Mapping[str, Tensor], adapter: Mapping[str, AdapterLayer]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of the base model, with LoRA updates added, by their names in checkpoints."""
    for name, tensor in parameters.items():
        layer, base, rest = name.partition(".base_layer.")
        if base and rest == "weight":
            yield checkpoint_name(base_name(name)), tensor + _update(parameters, layer, adapter[layer]).to(tensor.dtype)
        elif base:
            yield checkpoint_name(base_name(name)), tensor
        elif not _is_update(name):
            yield checkpoint_name(name), tensor


def wrapped_layers(model: torch.nn.Module) -> set[str]:
    """Return the layers of vLLM's model whose weights are one level deeper, in a `base_layer`.

    vLLM wraps all layers that an adapter could change. Those of 0.26 do not load weights themselves, later ones do.
    """
    return {
        name
        for name, layer in model.named_modules()
        if hasattr(layer, "base_layer") and not hasattr(layer, "load_weights")
    }


def name_in_vllm(name: str, wrapped: Collection[str], packed: Mapping[str, Sequence[str]]) -> str:
    """Return the name by which vLLM's model loads a parameter.

    `packed`: layers that vLLM joins into one, by its name. It is wrapped as a whole and loads its parts by their names.
    """
    layer, _, parameter = name.rpartition(".")
    parent, dot, own = layer.rpartition(".")
    joined = next((whole for whole, parts in packed.items() if own in parts), own)
    return f"{layer}.base_layer.{parameter}" if f"{parent}{dot}{joined}" in wrapped else name


def _is_update(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name


def base_name(name: str) -> str:
    return name.replace(".base_layer.", ".")


def checkpoint_name(name: str) -> str:
    """Return the name of a parameter in checkpoints, by which vLLM loads it.

    Modules of transformers have lost a level that checkpoints of LLaVA still have.
    """
    tower, level = "model.vision_tower.", "vision_model."
    inside = name.removeprefix(tower)
    return name if inside == name or inside.startswith(level) else f"{tower}{level}{inside}"


def _update(parameters: Mapping[str, Tensor], name: str, layer: AdapterLayer) -> Tensor:
    down, up = (parameters[f"{name}.{factor}.{ADAPTER}.weight"].float() for factor in ("lora_A", "lora_B"))
    update = layer.scaling * (up @ down)
    return update.T if layer.transposed else update
