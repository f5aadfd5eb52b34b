"""Shard models over the ranks of a torch.distributed process group with FSDP2.

Rank 0 alone loads the weights. The other ranks receive the model without them (a skeleton on the meta device), and then
their shards of one parameter after the other: no rank but the first ever holds a whole model. A single rank
exchanges nothing: even with itself, each of gloo's collectives takes as long as a small operation.

Trained parameters are sharded in float32 and computed in the model's dtype, so their shards are the master weights.
Gradients are summed over the ranks, not averaged: the weights of the tokens already aggregate.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor import empty as empty_dtensor
from torch.utils._pytree import tree_map_only
from transformers.modeling_utils import _CAN_RECORD_REGISTRY, PreTrainedModel

from turnwise.core.protocols import WeightSource
from turnwise.models.critic import HeadCritic, TrunkCritic
from turnwise.models.layers import decoder_layers
from turnwise.models.vision.encoder import image_encoder, vision_parameters

PLACEMENTS = (Shard(0),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """The ranks that share a model. `offload`: shards, gradients and optimizer states are in host memory."""

    mesh: DeviceMesh
    device: torch.device
    """Device of this rank that computes."""
    offload: bool = False

    @property
    def rank(self) -> int:
        return self.mesh.get_rank()

    @property
    def ranks(self) -> int:
        return self.mesh.size()

    @property
    def storage(self) -> torch.device:
        """Device of the shards."""
        return torch.device("cpu") if self.offload else self.device

    def shard_model(self, model: Any, weights: WeightSource | None) -> None:
        """Shard a causal LM on the meta device, and load the weights of rank 0."""
        self._shard(model, {layer: model_dtype(model) for layer in decoder_layers(model) or ()}, model_dtype(model))
        _watch_vision_shards(model)
        self.load(model, weights)

    @torch.no_grad()
    def shard_critic(self, critic: TrunkCritic | HeadCritic, policy: Any | None) -> None:
        """Shard a critic on the meta device. It starts with a value of 0, and with the trunk of rank 0's policy."""
        if isinstance(critic, TrunkCritic):
            dtype = model_dtype(critic.trunk)
            layers = dict.fromkeys(decoder_layers(critic.trunk) or (), dtype)
            self._shard(critic, {**layers, critic.head: torch.float32}, dtype)
            _watch_vision_shards(critic.trunk)
            self.load(critic.trunk, None if policy is None else policy.base_model)
        else:
            self._shard(critic, {}, torch.float32)
        for parameter in critic.head.parameters():
            local_of(parameter).zero_()

    def _shard(self, module: nn.Module, parts: dict[nn.Module, torch.dtype], dtype: torch.dtype) -> None:
        """Shard a module on the meta device, with each of its parts apart, to be computed in these dtypes.

        Its shards are then uninitialised.
        """
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
        for part, part_dtype in parts.items():
            fully_shard(part, **self._policies(part_dtype))
        # The outermost module then stays whole after its forward pass: for the backward pass, or until it is resharded.
        fully_shard(module, **self._policies(dtype))
        self._allocate(module)
        for sharded_module in sharded_modules(module):  # the setters do not recurse
            sharded_module.set_gradient_divide_factor(1.0)
            sharded_module.set_force_sum_reduction_for_comms(True)
        module.run = MethodType(_run, module)  # type: ignore[assignment]
        register_fsdp_forward_method(module, "run")

    def _policies(self, dtype: torch.dtype) -> dict[str, Any]:
        return {
            "mesh": self.mesh,
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=None if dtype == torch.float32 else dtype,
                reduce_dtype=torch.float32,
                cast_forward_inputs=False,
            ),
            "offload_policy": CPUOffloadPolicy(pin_memory=self.device.type == "cuda")
            if self.offload
            else OffloadPolicy(),
        }

    def _allocate(self, module: nn.Module) -> None:
        """Allocate the shards. Buffers, which skeletons have, keep their values and are on the computing device."""
        buffers = [(owner, name, buffer) for owner in module.modules() for name, buffer in owner._buffers.items()]
        module.to_empty(device=self.storage)
        for owner, name, buffer in buffers:
            owner._buffers[name] = None if buffer is None else buffer.to(self.device)

    @torch.no_grad()
    def load(self, module: nn.Module, weights: WeightSource | None) -> None:
        """Copy the weights of rank 0 into the shards. The other ranks' are not read and may be None."""
        source: dict[str, Tensor] = {}
        if self.rank == 0:
            assert weights is not None
            source = dict(weights.named_parameters())
        self.run_on_first_rank(lambda: _check_names(module, source))
        for name, parameter in module.named_parameters():
            if self.rank == 0:
                whole = source[name].detach().to(self.device, parameter.dtype)
            else:
                whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=self.device)
            local_of(parameter).copy_(self.scatter(whole))

    def scatter(self, whole: Tensor, source: int = 0) -> Tensor:
        """Return this rank's shard of a tensor of rank `source`; of the other ranks' only the shape is read."""
        if self.ranks == 1:
            return whole.contiguous()
        return distribute_tensor(whole.contiguous(), self.mesh, PLACEMENTS, src_data_rank=source).to_local()

    def gather(self, sharded: Tensor) -> Tensor:
        """Return a sharded tensor as a whole, on the computing device. It may be the tensor. All ranks call it."""
        return self.join(local_of(sharded.detach()), sharded)

    def join(self, local: Tensor, like: Tensor) -> Tensor:
        """Return the whole tensor, on the computing device, of which each rank passes its shard."""
        local = local.to(self.device)
        return local if self.ranks == 1 else self.wrap(local, like).full_tensor()

    def shard(self, whole: Tensor) -> Tensor:
        """Return a tensor that all ranks have as a sharded one, in the shards' storage. Exchanges nothing."""
        dtensor = distribute_tensor(whole.contiguous(), self.mesh, PLACEMENTS, src_data_rank=None)
        return self.wrap(dtensor.to_local().to(self.storage), dtensor)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return an uninitialised sharded tensor."""
        dtensor = empty_dtensor(*shape, dtype=dtype, device_mesh=self.mesh, placements=PLACEMENTS)
        return self.wrap(dtensor.to_local().to(self.storage), dtensor)

    def wrap(self, local: Tensor, like: Tensor) -> DTensor:
        return DTensor.from_local(local, self.mesh, PLACEMENTS, run_check=False, shape=like.shape, stride=like.stride())

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum over all ranks, in float64."""
        total = value.detach().to(self.device, torch.float64, copy=True)
        if self.ranks > 1:
            dist.all_reduce(total, group=self.mesh.get_group())
        return total

    def run_on_first_rank(self, function: Callable[[], None]) -> None:
        """Call the function on rank 0; raise its exception on all ranks, so that none waits for the first forever."""
        failure: list[Exception | None] = [None]
        if self.rank == 0:
            try:
                function()
            except Exception as error:
                failure = [error]
        dist.broadcast_object_list(failure, src=0, group=self.mesh.get_group(), device=self.device)
        if failure[0] is not None:
            raise failure[0]


def join_ranks(device: torch.device, *, offload: bool = False) -> Sharding:
    """Return the sharding over all ranks of the default process group. Every rank calls it, with its own device."""
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return Sharding(mesh=init_device_mesh(device.type, (dist.get_world_size(),)), device=device, offload=offload)


def share_skeleton(model: Any | None, sharding: Sharding) -> Any:
    """Return rank 0's model, with its parameters on the meta device, on every rank."""
    shared: list[Any] = [None]
    if sharding.rank == 0:
        on_meta = {id(parameter): _on_meta(parameter) for parameter in cast(nn.Module, model).parameters()}
        shared = [copy.deepcopy(model, dict[int, Any](on_meta))]
    dist.broadcast_object_list(shared, src=0, group=sharding.mesh.get_group(), device=sharding.device)
    for module in shared[0].modules():
        # transformers registers which outputs a class records when a model is initialised, not when it is unpickled.
        if isinstance(module, PreTrainedModel):
            dict.__setitem__(_CAN_RECORD_REGISTRY, str(type(module)), module._can_record_outputs)
    return shared[0]


def fill_skeleton(skeleton: Any, weights: dict[str, Tensor]) -> Any:
    """Return a plain model: a copy of the skeleton with these weights, and the others still on the meta device."""
    named = dict(skeleton.named_parameters())
    given = {id(named[name]): nn.Parameter(value, requires_grad=False) for name, value in weights.items()}
    return copy.deepcopy(skeleton, dict[int, Any](given))


def _on_meta(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)


def _run(module: Any, function: Callable[..., Any], *inputs: Any) -> Any:
    """Return `function(module, *inputs)`. As a forward method, so that the parameters are whole in the function."""
    outputs = function(module, *inputs)
    # FSDP wants no views
    return tree_map_only(Tensor, lambda output: output.clone() if output._is_view() else output, outputs)


def _watch_vision_shards(model: Any) -> None:
    """Let features be computed anew when the shards of the vision tower change.

    The tower is whole wherever the outermost module is, so a rank may run it on its own images alone. Gathering does
    not count as a write to the whole parameters. Writes to a sharded one count there, or in its local tensor.
    """
    encoder = image_encoder(model)
    if encoder is not None:
        shards = vision_parameters(model)
        encoder.tower_version = lambda: sum(shard._version + local_of(shard)._version for shard in shards)


def _check_names(module: nn.Module, source: dict[str, Tensor]) -> None:
    names = dict(module.named_parameters()).keys()
    if names != source.keys():
        raise ValueError(f"weights differ in names: {sorted(names ^ source.keys())[:3]}")


def model_dtype(model: Any) -> torch.dtype:
    return model.get_input_embeddings().weight.dtype


def sharded_modules(module: nn.Module) -> list[FSDPModule]:
    return [inner for inner in module.modules() if isinstance(inner, FSDPModule)]


def local_of(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a sharded tensor; any other tensor is returned as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
