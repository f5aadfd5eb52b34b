"""Optimizer of sharded parameters: each rank steps its shards; norms and decisions are those of all ranks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from turnwise.core.errors import DivergedError
from turnwise.models.sharding import Sharding, local_of
from turnwise.training.optimizer import MASTER, CpuMuon, Optimizer, OptimizerSettings, are_finite, orthogonalize


class ShardedOptimizer(Optimizer):
    """Optimizer of float32 shards. `saves_weights`: its state includes them, since the model's dtype rounds them."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        settings: OptimizerSettings,
        schedule: Callable[[int], float],
        *,
        sharding: Sharding,
        saves_weights: bool = False,
    ) -> None:
        self.sharding, self.saves_weights = sharding, saves_weights
        super().__init__(parameters, settings, schedule)

    def _muon(self, matrices: Sequence[nn.Parameter], rate: float, weight_decay: float) -> torch.optim.Optimizer:
        return ShardedMuon(matrices, rate, weight_decay, self.sharding)

    def _gradients(self) -> list[Tensor]:
        return [local_of(gradient) for gradient in super()._gradients()]

    def gradient_norm(self) -> Tensor:
        own = super().gradient_norm()
        return self.sharding.sum(own.double().square()).sqrt().to(own)

    def check_finite(self, when: str) -> None:
        check_finite_on_all_ranks(self.masters.parameters, self.sharding, when)

    def tensors(self) -> dict[str, Tensor]:
        weights = enumerate(self.parameters) if self.saves_weights else ()
        return super().tensors() | {f"{MASTER}.{number}": parameter.detach() for number, parameter in weights}

    @torch.no_grad()
    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        super().load_tensors(tensors)
        for number, parameter in enumerate(self.parameters):
            if (name := f"{MASTER}.{number}") in tensors:
                parameter.copy_(tensors[name])


def check_finite_on_all_ranks(tensors: Sequence[Tensor], sharding: Sharding, when: str) -> None:
    """Raise DivergedError on all ranks if a shard of any rank is not finite."""
    bad = torch.tensor(float(not are_finite([local_of(tensor) for tensor in tensors])))
    if float(sharding.sum(bad)):
        raise DivergedError(f"the weights are not finite {when}: lower the learning rate")


class ShardedMuon(CpuMuon):
    """Muon on sharded matrices. Orthogonalisation needs whole matrices: the ranks take turns, one matrix each."""

    def __init__(self, parameters: Sequence[Tensor], lr: float, weight_decay: float, sharding: Sharding) -> None:
        super().__init__(parameters, lr, weight_decay)
        self._sharding = sharding

    def _local(self, tensor: Tensor) -> Tensor:
        return local_of(tensor)  # arithmetic on DTensors takes several times as long for small matrices

    def _orthogonalize(
        self, parameters: Sequence[Tensor], updates: Iterable[Tensor], settings: tuple[Any, int, float]
    ) -> Iterator[Tensor]:
        sharding, left = self._sharding, zip(updates, parameters, strict=True)
        dtype = torch.bfloat16 if sharding.device.type == "cuda" else torch.float32  # as torch's Muon and `CpuMuon`
        while matrices := list(islice(left, sharding.ranks)):
            whole = [sharding.join(update, parameter) for update, parameter in matrices]
            for owner, matrix in enumerate(whole):
                if owner == sharding.rank:
                    whole[owner] = orthogonalize(matrix, *settings, dtype).to(matrix.dtype)
            for owner, matrix in enumerate(whole):
                yield sharding.scatter(matrix, owner).to(sharding.storage)
