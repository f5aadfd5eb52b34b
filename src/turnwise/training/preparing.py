"""Statistics over all tokens of an optimizer step, computed before its first gradient.

The mean of a covariance, a top share of tokens and the mean of importance weights depend on every token of the step:
taken over a micro-batch, they would depend on how the step was cut.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from turnwise.algos.corrections import step_scale
from turnwise.algos.losses import LossInputs
from turnwise.core.chance import address
from turnwise.core.samples import Learner, Needs, TrainSample
from turnwise.data.table import at_sampled, place, sampled_counts
from turnwise.training.objective import Objective
from turnwise.training.scoring import score_samples


def prepare_step(
    samples: list[TrainSample], learner: Learner, objective: Objective, micro_tokens: int, seed: Sequence[object]
) -> list[TrainSample]:
    """Add the tokens that the loss selects, and the scale of the correction, to all samples of an optimiser step.

    A loss that selects costs one forward pass more, without gradient, since it looks at the policy's current
    log-probabilities. `seed` addresses its random numbers, one a sampled token in the order of the samples.
    """
    loss = objective.loss
    if not samples or (loss.select is None and not objective.correction_params.normalise):
        return samples
    bare = [each.sample for each in samples]
    inputs = _step_inputs(samples, learner, micro_tokens, score=loss.select is not None)
    trained = at_sampled(bare, [each.weights for each in samples]) != 0
    scale = step_scale(objective.correction, inputs, objective.correction_params, trained)
    if loss.select is None:
        return [replace(each, correction_scale=scale) for each in samples]
    generator = torch.Generator().manual_seed(address(*seed))
    draws = torch.rand(len(trained), generator=generator)
    chosen = loss.select(_pick(inputs, trained), objective.loss_params, draws[trained])
    selected = place(bare, torch.zeros_like(trained).masked_scatter(trained, chosen))
    return [replace(each, selected=own, correction_scale=scale) for each, own in zip(samples, selected, strict=True)]


def _step_inputs(samples: list[TrainSample], learner: Learner, micro_tokens: int, *, score: bool) -> LossInputs:
    """All sampled tokens of the step, in the order of the samples; without `score` the policy is the old one."""
    bare = [each.sample for each in samples]
    old_logprobs = at_sampled(bare, [each.old_logprobs for each in samples])
    logprobs = old_logprobs
    if score:
        logprobs = torch.cat(score_samples(bare, learner, Needs(logprobs=True), micro_tokens)["logprobs"])
    return LossInputs(
        logprobs=logprobs,
        old_logprobs=old_logprobs,
        sampler_logprobs=at_sampled(bare, [each.logprobs for each in bare]),
        advantages=at_sampled(bare, [each.advantages for each in samples]),
        segment_ids=torch.repeat_interleave(torch.tensor(sampled_counts(bare))),
        turn_ids=at_sampled(bare, [each.turn_ids for each in bare]),
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
