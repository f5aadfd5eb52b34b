"""Small batches of sampled tokens for the tests of losses and corrections."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from turnwise.algos.loss_types import Loss, LossInputs, LossResult, PairInputs, PairLoss, SelectingLoss


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
        policy_logprobs=(old_logprobs + torch.tensor(log_ratios, dtype=torch.float64)).requires_grad_(),
        old_logprobs=old_logprobs,
        sampler_logprobs=old_logprobs - torch.tensor(log_rhos or nothing, dtype=torch.float64),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        segment_ids=torch.tensor(segments or nothing),
        turn_ids=torch.tensor(turns or nothing),
    )


def inputs_of(tokens: Tokens) -> LossInputs:
    return inputs(tokens.log_ratios, tokens.advantages, tokens.segments, tokens.turns, tokens.log_rhos)


def select(loss: Loss, given: LossInputs) -> LossInputs:
    """With the tokens that the loss treats apart, chosen over these as over a whole optimiser step.

    A segment is a group, and the old policy the reference.
    """
    if isinstance(loss, PairLoss):
        pairs = PairInputs(
            policy_logprobs=given.policy_logprobs.detach(),
            ref_logprobs=given.old_logprobs,
            advantages=given.advantages,
            group_ids=given.segment_ids,
            num_trajectories=2 * len(given.segment_ids.unique()),
        )
        return replace(given, factors=loss.weigh(pairs).factors)
    if not isinstance(loss, SelectingLoss) or given.selected is not None:
        return given
    draws = torch.rand(len(given.policy_logprobs), generator=torch.Generator().manual_seed(1))
    return replace(given, selected=loss.select(given, draws))


def run(loss: Loss, given: LossInputs) -> tuple[LossResult, Tensor]:
    """The result, and the gradient [M] of the plain sum of its token losses."""
    result = loss.compute(select(loss, given))
    return result, torch.autograd.grad(result.token_loss.sum(), given.policy_logprobs)[0]


def picked(given: LossInputs, tokens: Tensor) -> LossInputs:
    """These tokens, in this order, with a gradient of their own."""
    columns = {field.name: getattr(given, field.name) for field in fields(given)}
    chosen = {name: column[tokens].detach() for name, column in columns.items() if column is not None}
    return LossInputs(**chosen | {"policy_logprobs": chosen["policy_logprobs"].requires_grad_()})


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
