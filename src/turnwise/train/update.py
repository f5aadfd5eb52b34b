"""One step's update: score, advantages over whole trajectories, then mini-batches of gradients."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.algos.advantages import Advantage, AdvantageInputs, AdvantageParams
from turnwise.algos.aggregation import Aggregation
from turnwise.core.chance import stream
from turnwise.core.samples import Learner, Needs, Sample, TrainSample
from turnwise.core.trajectory import Group, Trajectory
from turnwise.data.packing import micro_batches, pack, pack_train, unpack
from turnwise.data.samples import samples_of
from turnwise.data.table import TokenTable, place


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings:
    advantage: Advantage
    advantage_params: AdvantageParams
    aggregation: Aggregation
    constant_length: int
    truncated: str
    """"zero", "bootstrap" or "drop": see `AlgoConfig.truncated`."""
    needs: Needs
    mini_batch: int
    epochs: int
    micro_tokens: int
    skip_idle: bool
    """Leave out samples whose advantages are all 0: right where the loss has no other term than the advantage's."""
    run_seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What is known of every sampled token before the weights change; one entry a sample, each of its length."""

    trajectories: tuple[Trajectory, ...]
    samples: list[Sample]
    old_logprobs: list[Tensor]
    ref_logprobs: list[Tensor] | None
    old_values: list[Tensor] | None
    advantages: list[Tensor]
    returns: list[Tensor] | None
    metrics: dict[str, float]


def trainable(groups: Sequence[Group], truncated: str) -> tuple[list[Trajectory], list[int]]:
    """The trajectories that are trained on, and the group of each. One that sampled nothing teaches nothing."""
    kept = [
        (trajectory, number)
        for number, group in enumerate(groups)
        for trajectory in group.trajectories
        if trajectory.num_sampled and not (truncated == "drop" and trajectory.status.cut_short)
    ]
    return [trajectory for trajectory, _ in kept], [number for _, number in kept]


def estimate(groups: Sequence[Group], learner: Learner, settings: UpdateSettings) -> Estimate | None:
    """Scores and advantages; None where nothing is left to train on."""
    trajectories, group_ids = trainable(groups, settings.truncated)
    if not trajectories:
        return None
    samples = samples_of(trajectories)
    table = TokenTable(samples, len(trajectories))
    scores = _score(samples, learner, settings)
    values = table.matrix(scores["values"]) if "values" in scores else None
    result = settings.advantage.compute(
        AdvantageInputs(
            mask=table.mask,
            token_rewards=table.turn_rewards([trajectory.turn_rewards for trajectory in trajectories]),
            group_ids=torch.tensor(group_ids),
            turn_ids=table.turn_ids,
            values=values,
            bootstrap=_bootstrap(trajectories, samples, scores) if settings.truncated == "bootstrap" else None,
        ),
        settings.advantage_params,
    )
    metrics = {"advantage_std": float(result.advantages[table.mask].std(correction=0))}
    if values is not None and result.returns is not None:
        metrics["explained_variance"] = _explained_variance(values[table.mask], result.returns[table.mask])
    if "logprobs" in scores:
        difference = torch.cat(scores["logprobs"]) - torch.cat([each.logprobs[each.mask] for each in samples])
        metrics["mismatch"] = float(difference.abs().mean())
    return Estimate(
        trajectories=tuple(trajectories),
        samples=samples,
        old_logprobs=_placed(samples, scores["logprobs"]) if "logprobs" in scores else [s.logprobs for s in samples],
        ref_logprobs=_placed(samples, scores["ref_logprobs"]) if "ref_logprobs" in scores else None,
        old_values=_placed(samples, scores["values"]) if "values" in scores else None,
        advantages=table.spread(result.advantages),
        returns=None if result.returns is None else table.spread(result.returns),
        metrics=metrics,
    )


def _score(samples: list[Sample], learner: Learner, settings: UpdateSettings) -> dict[str, list[Tensor]]:
    """What the algorithm needs of the learner: by name, one tensor a sample."""
    if not settings.needs.anything:
        return {}
    parts = micro_batches(samples, settings.micro_tokens)
    batches = [pack([samples[index] for index in part]) for part in parts]
    found: dict[str, dict[int, Tensor]] = {}
    for part, batch, scores in zip(parts, batches, learner.score(batches, settings.needs), strict=True):
        for name in ("logprobs", "values", "ref_logprobs"):
            column = getattr(scores, name)
            if column is not None and getattr(settings.needs, name):
                found.setdefault(name, {}).update(zip(part, unpack(batch, column), strict=True))
        if scores.end_values is not None:
            samples_in_order = [part[index] for index in batch.order]
            found.setdefault("end_values", {}).update(zip(samples_in_order, scores.end_values.unbind(), strict=True))
    return {name: [column[index] for index in range(len(samples))] for name, column in found.items()}


def _bootstrap(trajectories: list[Trajectory], samples: list[Sample], scores: dict[str, list[Tensor]]) -> Tensor:
    """The critic's value after the last token of those that a limit cut; 0 for all others. [B]"""
    last = {sample.trajectory: value for sample, value in zip(samples, scores["end_values"], strict=True)}
    ends = [float(last[index]) if each.status.cut_short else 0.0 for index, each in enumerate(trajectories)]
    return torch.tensor(ends)


def _placed(samples: list[Sample], columns: list[Tensor]) -> list[Tensor]:
    return [place(sample, column) for sample, column in zip(samples, columns, strict=True)]


def _explained_variance(values: Tensor, returns: Tensor) -> float:
    variance = returns.var(correction=0)
    return float(1 - (returns - values).var(correction=0) / variance) if variance > 0 else 0.0


def update(learner: Learner, estimated: Estimate, settings: UpdateSettings, step: int) -> dict[str, float]:
    """All epochs and mini-batches of one step; metrics are means over the tokens that were trained."""
    sums: dict[str, float] = {}
    norms: list[dict[str, float]] = []
    first: dict[str, float] = {}
    for part in mini_batch_order(len(estimated.trajectories), settings, step):
        samples = train_samples(estimated, set(part), settings)
        if settings.skip_idle:
            samples = [sample for sample in samples if bool(sample.advantages.any())]
        for micro in micro_batches([each.sample for each in samples], settings.micro_tokens):
            for name, value in learner.forward_backward(pack_train([samples[index] for index in micro])).items():
                sums[name] = sums.get(name, 0.0) + value
        if samples:
            first = first or dict(sums)
            norms.append(learner.step())
    if not sums:
        return {"idle_steps": 1.0}
    means = {name: value / sums["tokens"] for name, value in sums.items() if name != "tokens"}
    if "mismatch" in first:  # later mini-batches differ from the sampler because they have learnt
        means["mismatch"] = first["mismatch"] / first["tokens"]
    return means | {name: sum(norm[name] for norm in norms) / len(norms) for name in norms[0]}


def mini_batch_order(count: int, settings: UpdateSettings, step: int) -> Iterator[list[int]]:
    """Trajectory numbers of each optimiser step, shuffled anew each epoch."""
    for epoch in range(settings.epochs):
        order = list(range(count))
        stream("mini_batches", settings.run_seed, step, epoch).shuffle(order)
        for start in range(0, count, settings.mini_batch):
            yield order[start : start + settings.mini_batch]


def train_samples(estimated: Estimate, trajectories: set[int], settings: UpdateSettings) -> list[TrainSample]:
    """The samples of these trajectories, with weights that aggregate over all of them together."""
    chosen = [index for index, sample in enumerate(estimated.samples) if sample.trajectory in trajectories]
    sizes = [int(estimated.samples[index].mask.sum()) for index in chosen]
    owners = torch.tensor([estimated.samples[index].trajectory for index in chosen])
    weights = settings.aggregation(owners.repeat_interleave(torch.tensor(sizes)), settings.constant_length)
    return [
        TrainSample(
            sample=estimated.samples[index],
            old_logprobs=estimated.old_logprobs[index],
            ref_logprobs=estimated.ref_logprobs[index] if estimated.ref_logprobs else None,
            old_values=estimated.old_values[index] if estimated.old_values else None,
            advantages=estimated.advantages[index],
            returns=estimated.returns[index] if estimated.returns else None,
            weights=place(estimated.samples[index], weight),
        )
        for index, weight in zip(chosen, weights.split(sizes), strict=True)
    ]
