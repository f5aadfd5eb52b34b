"""From data to the learner's packed batches, and from its log-probabilities to the reply."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from turnwise.algos.kl import KL_ESTIMATORS
from turnwise.algos.settings import AlgoConfig
from turnwise.core.samples import Batch, TrainBatch
from turnwise.service.tinker.datums import Datum
from turnwise.service.tinker.losses import Inputs, LossSpec
from turnwise.service.tinker.messages import FLOAT32, MESSAGES
from turnwise.training.objective import Objective

MAX_LOGITS = 1 << 27
"""Logits of a micro-batch (0.5 GiB of float32). A datum with more is a micro-batch of its own."""
MAX_TOKENS = 16384
"""Tokens of a micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatumBatch(TrainBatch):
    """A packed batch with the inputs of the loss by name, [M] each."""

    inputs: Inputs
    data: Tensor  # [M] index of the datum of each token


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiObjective(Objective):
    """The loss that a request names, in place of the one in the settings."""

    spec: LossSpec

    def policy(
        self, batch: TrainBatch, policy_logprobs: Tensor, entropy: Tensor, *, kl_coef: float, entropy_coef: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        assert isinstance(batch, DatumBatch)
        device = policy_logprobs.device
        inputs = {name: values.to(device) for name, values in batch.inputs.items()}
        losses = self.spec.function(policy_logprobs, inputs, batch.data.to(device))
        return losses.sum(), {"policy_loss": losses.detach()}


def build_objective(spec: LossSpec) -> ApiObjective:
    return ApiObjective(algo=AlgoConfig(), critic_settings=None, kl_estimator=KL_ESTIMATORS["k3"], spec=spec)


def split_data(data: Sequence[Datum], vocabulary: int) -> Iterator[tuple[Datum, ...]]:
    """Yield the data of each micro-batch, in their order."""
    part, tokens, logits = list[Datum](), 0, 0
    for datum in data:
        more = datum.targets.numel() * vocabulary
        if part and (tokens + len(datum.ids) > MAX_TOKENS or logits + more > MAX_LOGITS):
            yield tuple(part)
            part, tokens, logits = [], 0, 0
        part.append(datum)
        tokens, logits = tokens + len(datum.ids), logits + more
    yield tuple(part)


def pack_data(data: Sequence[Datum], spec: LossSpec, settings: dict[str, float]) -> DatumBatch:
    """Pack data without padding. Every position is a source: of K targets if the targets are [N, K]."""
    lengths = [len(datum.ids) for datum in data]
    targets = torch.cat([datum.targets.flatten() for datum in data])
    counts = [datum.targets.numel() for datum in data]
    widths = torch.tensor([count // length for count, length in zip(counts, lengths, strict=True)])
    count = torch.zeros(len(targets))
    inputs = {
        name: torch.cat([
            datum.inputs[name].flatten() if name in datum.inputs else torch.full((size,), settings[name])
            for datum, size in zip(data, counts, strict=True)
        ])
        for name in (*spec.needs, *settings)
    }  # fmt: skip
    batch = Batch(
        ids=torch.cat([datum.ids for datum in data]),
        positions=torch.cat([torch.arange(length) for length in lengths]),
        lengths=tuple(lengths),
        parents=(-1,) * len(data),
        order=tuple(range(len(data))),
        counts=tuple(counts),
        sources=torch.arange(sum(lengths)).repeat_interleave(widths.repeat_interleave(torch.tensor(lengths))),
        targets=targets,
        temperatures=torch.ones(len(targets)),
        ends=torch.tensor(lengths).cumsum(0) - 1,
    )
    return DatumBatch(
        batch=batch,
        sampler_logprobs=inputs.get("logprobs", count),
        old_logprobs=inputs.get("logprobs", count),
        advantages=inputs.get("advantages", count),
        weights=torch.ones(len(targets)),
        turn_ids=torch.zeros(len(targets), dtype=torch.int64),
        ref_logprobs=None,
        old_values=None,
        returns=None,
        value_weights=None,
        inputs=inputs,
        data=torch.arange(len(data)).repeat_interleave(torch.tensor(counts)),
    )


def encode_output(data: Sequence[Datum], logprobs: Tensor, metrics: dict[str, float]) -> bytes:
    """Return the ForwardBackwardOutput: the log-probabilities of the targets, and the metrics.

    A record has data of equal trailing shape; their offsets are in bytes.
    """
    output = MESSAGES["ForwardBackwardOutput"](loss_fn_output_type="ArrayRecord", metrics=metrics)
    values = logprobs.float().numpy()
    start = 0
    for trailing, group in groupby(data, key=lambda datum: tuple(datum.targets.shape[1:])):
        sizes = [datum.targets.numel() for datum in group]
        record: Any = output.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(sizes))
        tensor = record.fields["logprobs"]
        tensor.data = values[start : start + sum(sizes)].tobytes()
        tensor.offsets = torch.tensor([0, *sizes]).cumsum(0).mul(4).numpy().tobytes()
        tensor.dtype = FLOAT32
        tensor.trailing_shape.extend(trailing)
        start += sum(sizes)
    return output.SerializeToString()
