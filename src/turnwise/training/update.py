"""One step's update: mini-batches of gradients from what was estimated."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnwise.algos.losses import AGGREGATIONS, LossInputs
from turnwise.algos.off_policy import compute_correction_scale
from turnwise.config.schema import TrainConfig
from turnwise.core.random_streams import address, random_stream
from turnwise.core.samples import Learner, Needs, TrainSample
from turnwise.data.packing import micro_batches, pack_train
from turnwise.data.token_table import count_sampled, gather_sampled, scatter_sampled
from turnwise.training.estimate import Estimate, score_samples
from turnwise.training.objective import MISMATCH_METRICS, Objective
from turnwise.training.step_record import TOKEN_SCORES, TokenStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings:
    objective: Objective
    train: TrainConfig
    micro_tokens: int
    skip_idle: bool
    """Leave out samples whose advantages are all 0: right where the loss has no other term than the advantage's."""
    run_seed: int


def update(
    learner: Learner,
    estimated: Estimate,
    settings: UpdateSettings,
    step: int,
    rate_scale: float = 1.0,
    seen: TokenStatistics | None = None,
) -> dict[str, float]:
    """All epochs and mini-batches of one step; metrics are means over the sampled tokens.

    `rate_scale`: factor of the step's learning rates.
    """
    sums: dict[str, Tensor] = {}
    norms: list[dict[str, float]] = []
    for number, part in enumerate(mini_batch_order(len(estimated.trajectories), settings, step)):
        samples = train_samples(estimated, set(part), settings)
        seed = ("selected_tokens", settings.run_seed, step, number)
        samples = add_step_statistics(samples, learner, settings.objective, settings.micro_tokens, seed)
        if settings.skip_idle:
            samples = [sample for sample in samples if bool(sample.advantages.any())]
        for micro in micro_batches([each.sample for each in samples], settings.micro_tokens):
            chosen = [samples[index] for index in micro]
            batch = pack_train(chosen)
            found = learner.forward_backward(batch, tokens=seen is not None)
            if seen is not None:
                seen.add(chosen, batch.batch, found)
            for name, value in found.items():
                if name not in TOKEN_SCORES:
                    sums[name] = sums[name] + value if name in sums else value
        if samples:
            norms.append(learner.step(rate_scale=rate_scale))
    if not sums:
        return {"idle_steps": 1.0}
    tokens = float(sums["tokens"])
    means = {name: float(value) / tokens for name, value in sums.items() if name != "tokens"}
    # Later mini-batches differ from the sampler because they have learnt.
    steps = {name: sum(norm[name] for norm in norms) / len(norms) for name in norms[0] if name not in MISMATCH_METRICS}
    return means | steps | {name: value for name, value in norms[0].items() if name in MISMATCH_METRICS}


def mini_batch_order(count: int, settings: UpdateSettings, step: int) -> Iterator[list[int]]:
    """Trajectory numbers of each optimiser step, shuffled anew each epoch."""
    for epoch in range(settings.train.epochs):
        order = list(range(count))
        random_stream("mini_batches", settings.run_seed, step, epoch).shuffle(order)
        for start in range(0, count, settings.train.mini_batch):
            yield order[start : start + settings.train.mini_batch]


def train_samples(estimated: Estimate, trajectories: set[int], settings: UpdateSettings) -> list[TrainSample]:
    """The samples of these trajectories, with weights that aggregate over all of them together."""
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
        )
        for number, index in enumerate(chosen)
    ]


def _weights(estimated: Estimate, chosen: list[int], masks: list[Tensor], settings: UpdateSettings) -> list[Tensor]:
    """The aggregation's weights over the tokens that count; 0 on all others. One tensor a sample, of its length."""
    sizes = [len(mask) for mask in masks]
    owners = torch.tensor([estimated.samples[index].trajectory for index in chosen])
    counts = torch.cat(masks)
    algo = settings.objective.algo
    aggregation = AGGREGATIONS[algo.aggregation]
    of_counting = aggregation(owners.repeat_interleave(torch.tensor(sizes))[counts], algo.constant_length)
    of_sampled = torch.zeros(len(counts)).masked_scatter(counts, of_counting)
    return scatter_sampled([estimated.samples[index] for index in chosen], of_sampled)


def add_step_statistics(
    samples: list[TrainSample], learner: Learner, objective: Objective, micro_tokens: int, seed: Sequence[object]
) -> list[TrainSample]:
    """Add the tokens that the loss selects, and the scale of the correction, to all samples of an optimiser step.

    A loss that selects costs one forward pass more, without gradient, since it looks at the policy's current
    log-probabilities. `seed` addresses its random numbers, one a sampled token in the order of the samples.
    """
    loss = objective.loss
    if not samples or (loss.select is None and not objective.algo.correction_normalise):
        return samples
    bare = [each.sample for each in samples]
    inputs = _step_inputs(samples, learner, micro_tokens, score=loss.select is not None)
    trained = gather_sampled(bare, [each.weights for each in samples]) != 0
    scale = compute_correction_scale(objective.correction, inputs, objective.algo, trained)
    if loss.select is None:
        return [replace(each, correction_scale=scale) for each in samples]
    generator = torch.Generator().manual_seed(address(*seed))
    draws = torch.rand(len(trained), generator=generator)
    chosen = loss.select(_pick(inputs, trained), objective.algo, draws[trained])
    selected = scatter_sampled(bare, torch.zeros_like(trained).masked_scatter(trained, chosen))
    return [replace(each, selected=own, correction_scale=scale) for each, own in zip(samples, selected, strict=True)]


def _step_inputs(samples: list[TrainSample], learner: Learner, micro_tokens: int, *, score: bool) -> LossInputs:
    """All sampled tokens of the step, in the order of the samples; without `score` the policy is the old one."""
    bare = [each.sample for each in samples]
    old_logprobs = gather_sampled(bare, [each.old_logprobs for each in samples])
    logprobs = old_logprobs
    if score:
        logprobs = torch.cat(score_samples(bare, learner, Needs(logprobs=True), micro_tokens)["logprobs"])
    return LossInputs(
        logprobs=logprobs,
        old_logprobs=old_logprobs,
        sampler_logprobs=gather_sampled(bare, [each.logprobs for each in bare]),
        advantages=gather_sampled(bare, [each.advantages for each in samples]),
        segment_ids=torch.repeat_interleave(torch.tensor(count_sampled(bare))),
        turn_ids=gather_sampled(bare, [each.turn_ids for each in bare]),
    )


def _pick(inputs: LossInputs, tokens: Tensor) -> LossInputs:
    return LossInputs(
        logprobs=inputs.logprobs[tokens],
        old_logprobs=inputs.old_logprobs[tokens],
        sampler_logprobs=inputs.sampler_logprobs[tokens],
        advantages=inputs.advantages[tokens],
        segment_ids=inputs.segment_ids[tokens],
        turn_ids=inputs.turn_ids[tokens],
    )
