"""Update of a training step: all epochs and mini-batches over its estimate."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from turnwise.algos.loss_types import LossInputs, PairInputs, PairLoss, SelectingLoss
from turnwise.config.training import TrainConfig
from turnwise.core.learner import Learner, Needs
from turnwise.core.random_streams import address, random_stream
from turnwise.core.samples import TrainSample
from turnwise.data.packing import micro_batches, pack_train
from turnwise.data.samples import count_sampled, gather_sampled, scatter_sampled
from turnwise.record.steps import IdleReason
from turnwise.training.objective import MISMATCH_METRICS, Objective
from turnwise.training.scores import score_samples
from turnwise.training.skipped_steps import SkipMonitor, find_cause
from turnwise.training.step import TOKEN_SCORES, Estimate, TokenStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings:
    objective: Objective
    train: TrainConfig
    micro_tokens: int
    skip_idle: bool
    """Skip samples whose advantages are all 0. Exact only if the loss has no term without the advantage."""
    run_seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    metrics: dict[str, float]
    """Means over the sampled tokens."""
    idle: IdleReason | None
    """Why the policy is unchanged; None if it was updated, or if only the critic was."""


def update(
    learner: Learner,
    estimated: Estimate,
    settings: UpdateSettings,
    step: int,
    rate_scale: float = 1.0,
    statistics: TokenStatistics | None = None,
    skips: SkipMonitor | None = None,
) -> Update:
    """Train on the estimate of a step.

    `rate_scale`: factor of the learning rates in this step; 0 trains nothing. `statistics`: collects values of each
    token. `skips`: counts skipped optimizer steps over training steps, and raises DivergedError.
    """
    if rate_scale == 0:
        return Update(metrics={"idle_steps": 1.0}, idle=IdleReason.UNTRUSTED_CRITIC)
    skips = skips or SkipMonitor()
    sums: dict[str, Tensor] = {}
    step_metrics: list[dict[str, float]] = []
    for number, trajectories in enumerate(mini_batch_order(estimated.group_ids, settings, step)):
        samples = train_samples(estimated, set(trajectories), settings)
        samples, pair_metrics = add_factors(samples, learner, settings.objective, settings.micro_tokens)
        seed = ("selected_tokens", settings.run_seed, step, number)
        samples = add_step_statistics(samples, learner, settings.objective, settings.micro_tokens, seed)
        if settings.skip_idle:
            samples = [sample for sample in samples if bool(sample.advantages.any())]
        micro = micro_batches([sample.sample for sample in samples], settings.micro_tokens, learner.ranks)
        batches = [pack_train([samples[index] for index in part]) for part in micro]
        losses = learner.forward_backward(batches, tokens=statistics is not None)
        if statistics is not None:
            for part, batch, metrics in zip(micro, batches, losses, strict=True):
                statistics.add([samples[index] for index in part], batch.batch, metrics)
        step_sums = _add_up(losses)
        sums = _add_up([sums, step_sums])
        if samples:
            step_metrics.append(learner.step(rate_scale=rate_scale) | pair_metrics)
            skips.add(step_metrics[-1], step + 1, partial(find_cause, step_sums, settings.objective.algo))
    if not sums:
        return Update(metrics={"idle_steps": 1.0}, idle=_empty_mask(estimated) or IdleReason.ZERO_ADVANTAGES)
    return Update(metrics=_means(sums) | _mean_over_steps(step_metrics), idle=_explain_idle(estimated, step_metrics))


def _means(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the means over the sampled tokens."""
    totals = {name: float(value) for name, value in sums.items()}
    tokens = totals.pop("tokens")
    return {name: total / tokens for name, total in totals.items()}


def _explain_idle(estimated: Estimate, steps: list[dict[str, float]]) -> IdleReason | None:
    """Return why the optimizer steps left the policy as it was. Those of the critic's warm-up have no policy norm."""
    norms = [metrics["grad_norm"] for metrics in steps if "grad_norm" in metrics]
    if not norms or any(norm > 0 and math.isfinite(norm) for norm in norms):
        return None
    if not any(norm == 0 for norm in norms):
        return IdleReason.SKIPPED
    shares = [estimated.metrics.get(f"{name}_token_share", 1.0) for name in ("loss", "advantage")]
    is_disjoint = sum(shares) <= 1  # else some tokens are in both masks
    return _empty_mask(estimated) or (IdleReason.DISJOINT_TOKENS if is_disjoint else IdleReason.ZERO_GRADIENT)


def _empty_mask(estimated: Estimate) -> IdleReason | None:
    if estimated.metrics.get("loss_token_share") == 0:
        return IdleReason.LOSS_TOKENS
    return IdleReason.ADVANTAGE_TOKENS if estimated.metrics.get("advantage_token_share") == 0 else None


def _add_up(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the sum of each metric, without the values of single tokens."""
    sums: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.items():
            if name not in TOKEN_SCORES:
                sums[name] = sums[name] + value if name in sums else value
    return sums


def _mean_over_steps(steps: list[dict[str, float]]) -> dict[str, float]:
    """Return the means of the optimizer steps' metrics; the mismatch with the sampler is that of the first step.

    Later steps differ from the sampler because the policy has changed. A step without pairs has no metrics of them.
    """
    values = {name: [step[name] for step in steps if name in step] for step_metrics in steps for name in step_metrics}
    return {
        name: numbers[0] if name in MISMATCH_METRICS else sum(numbers) / len(numbers)
        for name, numbers in values.items()
    }


def mini_batch_order(group_ids: Sequence[int], settings: UpdateSettings, step: int) -> Iterator[list[int]]:
    """Yield the trajectory indices of each optimizer step, shuffled anew in each epoch.

    A loss of groups needs all members of a group in one optimizer step, even if they are more than train.mini_batch.
    """
    whole_groups = isinstance(settings.objective.loss, PairLoss)
    members: dict[int, list[int]] = {}
    for index, group in enumerate(group_ids):
        members.setdefault(group if whole_groups else index, []).append(index)
    for epoch in range(settings.train.epochs):
        units = list(members.values())
        random_stream("mini_batches", settings.run_seed, step, epoch).shuffle(units)
        batch: list[int] = []
        for unit in units:
            if batch and len(batch) + len(unit) > settings.train.mini_batch:
                yield batch
                batch = []
            batch = [*batch, *unit]
        yield batch


def train_samples(estimated: Estimate, trajectories: set[int], settings: UpdateSettings) -> list[TrainSample]:
    """Return the samples of these trajectories, with loss weights that aggregate over all of them."""
    chosen = [index for index, sample in enumerate(estimated.samples) if sample.trajectory in trajectories]
    weights = _weights(estimated, chosen, [estimated.loss_masks[index] for index in chosen], settings)
    value_weights = (
        _weights(estimated, chosen, [estimated.advantage_masks[index] for index in chosen], settings)
        if estimated.returns
        else None
    )
    return [
        TrainSample(
            sample=estimated.samples[index],
            old_logprobs=estimated.old_logprobs[index],
            ref_logprobs=estimated.ref_logprobs[index] if estimated.ref_logprobs else None,
            old_values=estimated.old_values[index] if estimated.old_values else None,
            advantages=estimated.advantages[index],
            returns=estimated.returns[index] if estimated.returns else None,
            weights=weights[number],
            value_weights=None if value_weights is None else value_weights[number],
            group=estimated.group_ids[estimated.samples[index].trajectory],
            index=index,
        )
        for number, index in enumerate(chosen)
    ]


def _weights(estimated: Estimate, chosen: list[int], masks: list[Tensor], settings: UpdateSettings) -> list[Tensor]:
    """Return the aggregation weight of each token in the masks, 0 elsewhere; one tensor per sample, of its length."""
    sizes = [len(mask) for mask in masks]
    owners = torch.tensor([estimated.samples[index].trajectory for index in chosen])
    in_mask = torch.cat(masks)
    weights = settings.objective.algo.aggregation.weights(owners.repeat_interleave(torch.tensor(sizes))[in_mask])
    weights = torch.zeros(len(in_mask)).masked_scatter(in_mask, weights)
    return scatter_sampled([estimated.samples[index] for index in chosen], weights)


def add_step_statistics(
    samples: list[TrainSample], learner: Learner, objective: Objective, micro_tokens: int, seed: Sequence[object]
) -> list[TrainSample]:
    """Add what depends on all samples of an optimizer step: selected tokens, scale of the correction.

    A loss that selects tokens costs one more forward pass, without gradients, for the current log-probabilities.
    `seed` addresses the random numbers of a selection, one per sampled token in the order of the samples.
    """
    loss = objective.loss
    selects = isinstance(loss, SelectingLoss)
    if not samples or (not selects and not objective.correction.is_normalised):
        return samples
    bare = [sample.sample for sample in samples]
    inputs = _step_inputs(samples, learner, micro_tokens, score=selects)
    trained = gather_sampled(bare, [sample.weights for sample in samples]) != 0
    scale = objective.correction.scale(inputs, trained)
    if not isinstance(loss, SelectingLoss):
        return [replace(sample, correction_scale=scale) for sample in samples]
    generator = torch.Generator().manual_seed(address(*seed))
    draws = torch.rand(len(trained), generator=generator)
    chosen = loss.select(_pick(inputs, trained), draws[trained])
    selected = scatter_sampled(bare, torch.zeros_like(trained).masked_scatter(trained, chosen))
    return [
        replace(sample, selected=tokens, correction_scale=scale)
        for sample, tokens in zip(samples, selected, strict=True)
    ]


def add_factors(
    samples: list[TrainSample], learner: Learner, objective: Objective, micro_tokens: int
) -> tuple[list[TrainSample], dict[str, float]]:
    """Add the factors of a loss of groups, from the trained tokens of whole groups; also return its metrics.

    Costs one more forward pass, without gradients, for the current log-probabilities.
    """
    bare, loss = [sample.sample for sample in samples], objective.loss
    if not isinstance(loss, PairLoss) or not samples:
        return samples, {}
    scores = score_samples(bare, learner, Needs(policy_logprobs=True), micro_tokens)
    policy_logprobs = torch.cat(scores["policy_logprobs"])
    trained = gather_sampled(bare, [sample.weights for sample in samples]) != 0
    groups = torch.tensor([sample.group for sample in samples]).repeat_interleave(torch.tensor(count_sampled(bare)))
    references = [_reference(sample) for sample in samples]
    inputs = PairInputs(
        policy_logprobs=policy_logprobs[trained],
        ref_logprobs=gather_sampled(bare, references)[trained],
        advantages=gather_sampled(bare, [sample.advantages for sample in samples])[trained],
        group_ids=groups[trained],
        num_trajectories=len({sample.sample.trajectory for sample in samples if bool(sample.weights.any())}),
    )
    weights = loss.weigh(inputs)
    scattered = scatter_sampled(bare, torch.zeros_like(policy_logprobs).masked_scatter(trained, weights.factors))
    return [replace(sample, factors=tokens) for sample, tokens in zip(samples, scattered, strict=True)], weights.metrics


def _reference(sample: TrainSample) -> Tensor:
    if sample.ref_logprobs is None:
        raise ValueError("This loss needs the log-probabilities of a reference.")
    return sample.ref_logprobs


def _step_inputs(samples: list[TrainSample], learner: Learner, micro_tokens: int, *, score: bool) -> LossInputs:
    """Return all sampled tokens of the step, in the order of the samples; without `score`, with the old policy."""
    bare = [sample.sample for sample in samples]
    old_logprobs = gather_sampled(bare, [sample.old_logprobs for sample in samples])
    policy_logprobs = old_logprobs
    if score:
        scores = score_samples(bare, learner, Needs(policy_logprobs=True), micro_tokens)
        policy_logprobs = torch.cat(scores["policy_logprobs"])
    return LossInputs(
        policy_logprobs=policy_logprobs,
        old_logprobs=old_logprobs,
        sampler_logprobs=gather_sampled(bare, [sample.sampler_logprobs for sample in bare]),
        advantages=gather_sampled(bare, [sample.advantages for sample in samples]),
        segment_ids=torch.repeat_interleave(torch.tensor(count_sampled(bare))),
        turn_ids=gather_sampled(bare, [sample.turn_ids for sample in bare]),
    )


def _pick(inputs: LossInputs, tokens: Tensor) -> LossInputs:
    return LossInputs(
        policy_logprobs=inputs.policy_logprobs[tokens],
        old_logprobs=inputs.old_logprobs[tokens],
        sampler_logprobs=inputs.sampler_logprobs[tokens],
        advantages=inputs.advantages[tokens],
        segment_ids=inputs.segment_ids[tokens],
        turn_ids=inputs.turn_ids[tokens],
    )
