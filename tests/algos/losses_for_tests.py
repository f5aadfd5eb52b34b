"""Small batches of sampled tokens for the tests of losses and corrections."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from hypothesis import strategies as st
from params_for_tests import change
from torch import Tensor

from turnwise.algos.loss_types import Loss, LossInputs, LossResult, PairInputs
from turnwise.core.algorithm import LossParams

PARAMS = LossParams(clip_low=0.2, clip_high=0.28, dual_clip=3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Log-ratios pi / pi_old and pi_old / mu, advantages, and to what each token belongs."""

    log_ratios: Sequence[float]
    log_rhos: Sequence[float]
    advantages: Sequence[float]
    segments: Sequence[int]
    turns: Sequence[int]


def inputs(
    log_ratios: Sequence[float],
    advantages: Sequence[float],
    segments: Sequence[int] | None = None,
    turns: Sequence[int] | None = None,
    log_rhos: Sequence[float] | None = None,
    old: float = -1.0,
) -> LossInputs:
    """Tokens of the old log-probability `old`; by default one segment of one turn, sampled by the old policy."""
    nothing = [0] * len(log_ratios)
    old_logprobs = torch.full((len(log_ratios),), old, dtype=torch.float64)
    return LossInputs(
        logprobs=(old_logprobs + torch.tensor(log_ratios, dtype=torch.float64)).requires_grad_(),
        old_logprobs=old_logprobs,
        sampler_logprobs=old_logprobs - torch.tensor(log_rhos or nothing, dtype=torch.float64),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        segment_ids=torch.tensor(segments or nothing),
        turn_ids=torch.tensor(turns or nothing),
    )


def inputs_of(tokens: Tokens) -> LossInputs:
    return inputs(tokens.log_ratios, tokens.advantages, tokens.segments, tokens.turns, tokens.log_rhos)


def select(loss: Loss, given: LossInputs, params: LossParams = PARAMS) -> LossInputs:
    """With the tokens that the loss treats apart, chosen over these as over a whole optimiser step.

    A segment is a group, and the old policy the reference.
    """
    if loss.weigh is not None:
        pairs = PairInputs(
            logprobs=given.logprobs.detach(),
            ref_logprobs=given.old_logprobs,
            advantages=given.advantages,
            group_ids=given.segment_ids,
            num_trajectories=2 * len(given.segment_ids.unique()),
        )
        return replace(given, factors=loss.weigh(pairs, params).factors)
    if loss.select is None or given.selected is not None:
        return given
    draws = torch.rand(len(given.logprobs), generator=torch.Generator().manual_seed(1))
    return replace(given, selected=loss.select(given, params, draws))


def run(loss: Loss, given: LossInputs, params: LossParams = PARAMS) -> tuple[LossResult, Tensor]:
    """The result, and the gradient [M] of the plain sum of its token losses."""
    result = loss.compute(select(loss, given, params), params)
    return result, torch.autograd.grad(result.token_loss.sum(), given.logprobs)[0]


def picked(given: LossInputs, tokens: Tensor) -> LossInputs:
    """These tokens, in this order, with a gradient of their own."""
    columns = {field.name: getattr(given, field.name) for field in fields(given)}
    chosen = {name: column[tokens].detach() for name, column in columns.items() if column is not None}
    return LossInputs(**chosen | {"logprobs": chosen["logprobs"].requires_grad_()})


def changed_fields(params: Any, others: dict[str, Any]) -> dict[str, Any]:
    """One variant for each field, by the field's name."""
    assert others.keys() == set(type(params).model_fields)
    return {name: change(params, **{name: value}) for name, value in others.items()}


@st.composite
def token_batches(draw: st.DrawFn) -> Tokens:
    """A few segments of a few turns of a few tokens, laid out one after the other."""
    owners = []
    for segment in range(draw(st.integers(1, 3))):
        for turn in range(draw(st.integers(1, 3))):
            owners += [(segment, turn)] * draw(st.integers(1, 3))
    numbers = st.floats(-1.5, 1.5)

    def column() -> list[float]:
        return draw(st.lists(numbers, min_size=len(owners), max_size=len(owners)))

    return Tokens(
        log_ratios=column(),
        log_rhos=column(),
        advantages=column(),
        segments=[segment for segment, _ in owners],
        turns=[turn for _, turn in owners],
    )
