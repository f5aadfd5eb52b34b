"""Learner of one rank: model, critic and reference are sharded, micro-batches are distributed over the ranks.

All ranks call the same methods with the same arguments, and get the same results.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from turnwise.core.learner import Needs, Scores
from turnwise.core.protocols import WeightSource
from turnwise.core.samples import Batch, TrainBatch, on_device
from turnwise.models.critic import TrunkCritic
from turnwise.models.forward import batch_attention
from turnwise.models.loading.lora import has_adapter
from turnwise.models.loading.save import write_model
from turnwise.models.sharding import Sharding, fill_skeleton, sharded_modules
from turnwise.models.vision.encoder import image_encoder
from turnwise.training.learner import LocalLearner, Result
from turnwise.training.learner_state import load_tensors, save_shards
from turnwise.training.objective import Objective
from turnwise.training.sharded_optimizer import ShardedOptimizer, check_finite_on_all_ranks


class ShardedLearner(LocalLearner):
    """Learner of one rank. `skeleton`: the plain model on the meta device, which gets the weights when it is saved.

    `reduce_once_per_step`: reduce gradients over the ranks once per optimizer step instead of per micro-batch. Until
    then each rank keeps them unsharded.
    """

    def __init__(
        self,
        model: Any,
        objective: Objective,
        optimizer: ShardedOptimizer,
        *,
        skeleton: Any,
        sharding: Sharding,
        reduce_once_per_step: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(model, objective, optimizer, **options)
        self.skeleton, self.sharding = skeleton, sharding
        self.reduce_once_per_step = reduce_once_per_step
        modules = [module for module in (model, self.critic, self.reference) if module is not None]
        self._sharded_modules = [part for module in modules for part in sharded_modules(module)]
        trained = [model, *([self.critic.trunk] if isinstance(self.critic, TrunkCritic) else [])]
        self._image_encoders = [encoder for encoder in map(image_encoder, trained) if encoder is not None]

    @property
    def ranks(self) -> int:  # type: ignore[override]
        return self.sharding.ranks

    @property
    def device(self) -> torch.device:
        return self.sharding.device

    @torch.no_grad()
    def score(self, batches: Sequence[Batch], needs: Needs) -> list[Scores]:
        def compute(index: int, _: bool) -> dict[str, Tensor]:
            here = on_device(batches[index], self.device)
            with batch_attention(self.model, here):
                scores = self._score(here, needs)
            columns = {field.name: getattr(scores, field.name) for field in fields(scores)}
            return {name: column for name, column in columns.items() if column is not None}

        def length(index: int, name: str) -> int:
            return len(batches[index].ends if name == "end_values" else batches[index].sources)

        results = self._distribute([len(batch.ids) for batch in batches], compute, length)
        return [Scores(**{name: column.float().cpu() for name, column in result.items()}) for result in results]

    def forward_backward(self, batches: Iterable[TrainBatch], *, tokens: bool = False) -> list[dict[str, Tensor]]:
        """Accumulate the batches' gradients, as `LocalLearner` does. A padding batch has weights of 0."""
        batches = list(batches)
        score_names = set[str]()
        has_images = any(bool((batch.batch.ids < 0).any()) for batch in batches)
        for encoder in self._image_encoders:  # the ranks must reduce the same gradients
            encoder.reaches_all_batches = has_images

        def compute(index: int, padding: bool) -> dict[str, Tensor]:
            batch = _without_weights(batches[index]) if padding else batches[index]
            sums, scores = self._forward_backward(on_device(batch, self.device))
            score_names.update(scores)
            return sums | scores

        def length(index: int, name: str) -> int:
            return len(batches[index].weights) if name in score_names else 1

        results = self._distribute([len(batch.batch.ids) for batch in batches], compute, length)
        return [
            self._finish(batch, result, score_names, tokens) for batch, result in zip(batches, results, strict=True)
        ]

    def _finish(
        self, batch: TrainBatch, columns: dict[str, Tensor], score_names: set[str], tokens: bool
    ) -> dict[str, Tensor]:
        """Return the metrics of a batch, and count its sampled tokens for the mismatch, which all ranks do."""
        scores = {name: column.float() for name, column in columns.items() if name in score_names}
        if scores:
            sampler = batch.sampler_logprobs.to(self.device)
            self._mismatch.add(scores["token_logprobs"], sampler, batch.batch.counts)
        sums = {name: column[0] for name, column in columns.items() if name not in score_names}
        return sums | (scores if tokens else {})

    def _distribute(
        self,
        sizes: Sequence[int],
        compute: Callable[[int, bool], dict[str, Tensor]],
        length: Callable[[int, str], int],
    ) -> list[dict[str, Tensor]]:
        """Compute each batch on one rank; return the results of all, in order, on every rank.

        `compute` gets the index of a batch and whether it is padding, and returns tensors [length(index, name)] by
        name; a number counts as a tensor [1].
        """
        own, names = dict[int, dict[str, Tensor]](), list[str]()
        passes = assign_batches(sizes, self.ranks)[self.sharding.rank]
        for number, batch_pass in enumerate(passes, start=1):
            for part in self._sharded_modules:
                part.set_requires_gradient_sync(number == len(passes) or not self.reduce_once_per_step, recurse=False)
            columns = compute(batch_pass.index, batch_pass.padding)
            names = list(columns)
            if not batch_pass.padding:
                own[batch_pass.index] = columns
        self._reshard()
        lengths = [[length(index, name) for name in names] for index in range(len(sizes))]
        return self._share(own, names, lengths)

    def _share(
        self, own: dict[int, dict[str, Tensor]], names: Sequence[str], lengths: Sequence[Sequence[int]]
    ) -> list[dict[str, Tensor]]:
        """All-reduce the results; each rank contributes its own batches and zeros elsewhere."""
        flat = torch.zeros(sum(map(sum, lengths)), dtype=torch.float64, device=self.device)
        counts = [count for length in lengths for count in length]
        parts = iter(flat.split(counts))
        table = [{name: next(parts) for name in names} for _ in lengths]
        for index, columns in own.items():
            for name, values in columns.items():
                table[index][name].copy_(values)
        parts = iter(self.sharding.sum(flat).split(counts))
        return [{name: next(parts) for name in names} for _ in lengths]

    def _run(self, function: Callable[..., Result], model: Any, *inputs: Any) -> Result:
        return model.run(function, *inputs)

    def _reshard(self) -> None:
        """Free the unsharded parameters, which would be stale once the shards change."""
        for part in self._sharded_modules:
            part.reshard()

    @contextmanager
    def _as_reference(self) -> Iterator[Any]:
        self._reshard()
        with super()._as_reference() as reference:
            yield reference
            self._reshard()

    def weights(self) -> WeightSource:
        """Return the whole weights under the names of the plain model. Every rank iterates over them."""
        return _GatheredWeights(self)

    def named_weights(self, *, trained: bool) -> Iterator[tuple[str, Tensor]]:
        """Yield the trained or the frozen parameters, gathered. Every rank iterates over them."""
        plain = dict(self.skeleton.named_parameters())
        for name, parameter in super().named_weights(trained=trained):
            yield name, self.sharding.gather(parameter).to(plain[name].dtype)

    def load_weights(self, weights: WeightSource | None) -> None:
        """Copy the weights of rank 0 into all ranks' shards. The other ranks' are not read and may be None."""
        self.sharding.load(self.model, weights)

    def value_head(self) -> dict[str, Tensor]:
        return {name: self.sharding.gather(tensor) for name, tensor in super().value_head().items()}

    def save_model(self, folder: Path, tokenizer: Any) -> None:
        """Write the policy as a Hugging Face model folder, on rank 0, which needs host memory for all weights."""
        weights: dict[str, Tensor] = {}
        for trained in (True,) if has_adapter(self.model) else (True, False):
            for name, whole in self.named_weights(trained=trained):
                if self.sharding.rank == 0:
                    weights[name] = whole.cpu()
        self.sharding.run_on_first_rank(lambda: write_model(fill_skeleton(self.skeleton, weights), tokenizer, folder))

    def check_finite(self, when: str) -> None:
        tensors = [*self.model.parameters(), *self.state_dict()["tensors"].values()]
        check_finite_on_all_ranks(tensors, self.sharding, when)

    def save_state(self, folder: Path) -> None:
        save_shards(self.state_dict()["tensors"], folder)

    def load_state(self, folder: Path, *, skipped_steps: int) -> None:
        """Load a state that any number of ranks or a local learner saved."""
        tensors = load_tensors(folder, self.sharding)
        self.load_state_dict({"tensors": tensors, "skipped_steps": skipped_steps})


@dataclass(frozen=True, slots=True)
class _GatheredWeights:
    learner: ShardedLearner

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        return chain(self.learner.named_weights(trained=True), self.learner.named_weights(trained=False))


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass of a rank. `padding`: the batch is another rank's; its result is not used."""

    index: int
    padding: bool = False


def assign_batches(sizes: Sequence[int], ranks: int) -> list[list[Pass]]:
    """Assign batches to ranks: a list of equal length for each.

    The ranks wait for each other in every layer, so a round of one batch each takes as long as the largest of them.
    Rounds of similar sizes minimise the sum of these. Within a round, the rank with the fewest tokens so far gets the
    largest batch. The last round is padded with the smallest batch.
    """
    order = sorted(range(len(sizes)), key=lambda index: (-sizes[index], index))
    passes: list[list[Pass]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for start in range(0, len(order), ranks):
        chosen = [Pass(index) for index in order[start : start + ranks]]
        chosen += [Pass(order[-1], padding=True)] * (ranks - len(chosen))
        least_first = sorted(range(ranks), key=lambda rank: (tokens[rank], rank))
        for rank, batch_pass in zip(least_first, chosen, strict=True):
            passes[rank].append(batch_pass)
            tokens[rank] += sizes[batch_pass.index]
    return passes


def _without_weights(batch: TrainBatch) -> TrainBatch:
    """Return the batch with a loss of 0."""
    value_weights = None if batch.value_weights is None else torch.zeros_like(batch.value_weights)
    return replace(batch, weights=torch.zeros_like(batch.weights), value_weights=value_weights)
