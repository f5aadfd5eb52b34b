"""Advantages: how much better than expected each sampled token turned out. ADVANTAGES lists the estimators by name.

With a critic: generalised advantage estimation over tokens, turns or both. Within a group: trajectories, or turns,
compared with each other; a group of one and equal returns give exactly 0, except in reinforce_pp_baseline, which then
subtracts the batch's mean. Otherwise: a trajectory's own returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from turnwise.algos.advantage_types import (
    Advantage,
    AdvantageInputs,
    AdvantageResult,
    TurnLayout,
    broadcast_to_tokens,
    find_turns,
)
from turnwise.algos.gae import BiLevelGae, Gae, StepGae, TurnGae, discounted_returns
from turnwise.algos.offline import Clone, Preference
from turnwise.algos.stats import (
    STD_FLOOR,
    GroupStatistics,
    group_statistics,
    pair_ids,
    reduce_by_group,
    return_statistics,
    rounding_error,
    whiten,
)
from turnwise.settings.choice import choices
from turnwise.settings.section import Share

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from turnwise.algos.lazy_torch import torch


class Grpo(Advantage, kind="grpo"):
    """(R - mean) / (std + epsilon) within the group (Shao et al. 2024)."""

    needs_groups: ClassVar[bool] = True

    def compute(self, inputs: AdvantageInputs) -> AdvantageResult:
        return broadcast_to_tokens(_returns(inputs).standardised(), inputs)


class DrGrpo(Advantage, kind="dr_grpo"):
    """R - mean within the group: not dividing by the std keeps the weight of easy and hard tasks (Liu et al. 2025)."""

    needs_groups: ClassVar[bool] = True

    def compute(self, inputs: AdvantageInputs) -> AdvantageResult:
        return broadcast_to_tokens(_returns(inputs).centred, inputs)


class Rloo(Advantage, kind="rloo"):
    """R - mean of the *other* members = n / (n - 1) (R - mean), an unbiased baseline (Ahmadian et al. 2024)."""

    needs_groups: ClassVar[bool] = True

    def compute(self, inputs: AdvantageInputs) -> AdvantageResult:
        group = _returns(inputs)
        return broadcast_to_tokens(group.centred * group.size / (group.size - 1).clamp(min=1), inputs)


class ReinforcePpBaseline(Advantage, kind="reinforce_pp_baseline"):
    """R - mean within the group, then whitened over all sampled tokens (REINFORCE++-baseline, Hu 2025).

    Statistics are over tokens, so long trajectories weigh more. A group of one is left out of them.
    """

    needs_groups: ClassVar[bool] = True

    def compute(self, inputs: AdvantageInputs) -> AdvantageResult:
        compared = inputs.mask & (_returns(inputs).size > 1)[:, None]
        return AdvantageResult(advantages=whiten(DrGrpo().compute(inputs).advantages, compared))


class Opo(Advantage, kind="opo"):
    """R - sum(length R) / sum(length) within the group (OPO, Hao et al. 2025).

    The minimum-variance baseline if a trajectory's squared gradient is proportional to its number of sampled tokens.
    """

    needs_groups: ClassVar[bool] = True

    def compute(self, inputs: AdvantageInputs) -> AdvantageResult:
        centred, lengths = _returns(inputs).centred, inputs.mask.sum(dim=1).double()
        group = inputs.group_ids.unique(return_inverse=True)[1]
        total = reduce_by_group(lengths, group, "sum").clamp(min=1)
        return broadcast_to_tokens(centred - reduce_by_group(lengths * centred, group, "sum") / total, inputs)


class Gpg(Advantage, kind="gpg"):
    """(B / non-zero) (R - mean) within the group, for the loss -A log pi (GPG, Chu et al. 2025).

    B is the number of trajectories and non-zero that of trajectories with a reward, so a batch with few rewards still
    takes a full step.
    """

    needs_groups: ClassVar[bool] = True

    def compute(self, inputs: AdvantageInputs) -> AdvantageResult:
        group = _returns(inputs)
        trajectories, earned = inputs.mask.any(dim=1).sum().double(), (group.values != 0).sum().clamp(min=1)
        return broadcast_to_tokens(group.centred * (trajectories / earned), inputs)


class PassAtK(Advantage, kind="pass_at_k"):
    """R_best - R_second for the group's best member only, over the std (+ epsilon) if `by_std` (Tang et al. 2025).

    The leave-one-out gradient of the group's best reward, which encourages diversity. A tie gives 0.
    """

    needs_groups: ClassVar[bool] = True
    by_std: bool = True
    """Divide by the standard deviation of the compared values."""

    def compute(self, inputs: AdvantageInputs) -> AdvantageResult:
        group, numbers = _returns(inputs), inputs.group_ids.unique(return_inverse=True)[1]
        scores = torch.where(inputs.mask.any(dim=1), group.centred, -torch.inf)
        best = (scores == reduce_by_group(scores, numbers, "amax")) & (group.size > 1)
        second = reduce_by_group(torch.where(best, -torch.inf, scores), numbers, "amax")
        alone_on_top = best & (reduce_by_group(best.double(), numbers, "sum") == 1)
        gap = torch.where(alone_on_top, scores - second, 0.0)
        return broadcast_to_tokens(gap / (group.std + STD_FLOOR) if self.by_std else gap, inputs)


def _returns(inputs: AdvantageInputs) -> GroupStatistics:
    return return_statistics(inputs.token_rewards, inputs.mask, inputs.group_ids)


class Gigpo(Advantage, kind="gigpo"):
    """norm_G(R) + step_weight norm_S(R_k) on the tokens of turn k (GiGPO, Feng et al. 2025).

    R_k is the return from turn k on, discounted by gamma_turn; S are the group's turns that acted in the same state,
    revisits included. norm is (x - mean) / (std + epsilon), or x - mean without `by_std`. An episode counts once in
    norm_G, however many turns it has; a state visited once, or unknown (-1), contributes 0.
    """

    needs_groups: ClassVar[bool] = True
    needs_states: ClassVar[bool] = True
    gamma_turn: Share = 1.0
    """Discount per turn."""
    step_weight: ClassVar[float] = 1.0
    """Weight of the advantage among steps from the same state, as in the paper; that of the episode's is 1."""
    by_std: bool = True
    """Divide by the standard deviation of the compared values."""

    def compute(self, inputs: AdvantageInputs) -> AdvantageResult:
        if inputs.state_ids is None:
            raise ValueError("gigpo needs state ids: the environment must implement state_key().")
        turns = find_turns(inputs.mask, inputs.turn_ids)
        episodes = return_statistics(inputs.token_rewards, inputs.mask, inputs.group_ids)
        states = turns.at_starts(inputs.state_ids)
        compared = turns.mask & (states >= 0) & (episodes.size > 1)[:, None]
        rewards = inputs.token_rewards
        onwards, sizes = (_onwards(turns.sums(amounts), turns, self.gamma_turn) for amounts in (rewards, rewards.abs()))
        steps = _compared_turns(onwards, sizes, compared, states, inputs, self)
        mixed = _norm(episodes, self)[:, None] + self.step_weight * steps
        return _on_turns(mixed, turns, inputs)


class TurnGrpo(Advantage, kind="turn_grpo"):
    """(1 - w) norm_G(r_k) + w norm_G(R) on the tokens of turn k, w the outcome_weight (MT-GRPO, Zeng et al. 2025).

    r_k is compared with the group's r_k at the same turn, R with the group's R; norm as in `gigpo`. The paper's
    A_turn + lambda A_outcome is this one at w = lambda / (1 + lambda), times 1 + lambda.
    Members that stopped before turn k are not in turn k's statistics. The policy chooses when to stop, so this
    comparison is biased: after good members have stopped, the best of the rest looks good.
    """

    needs_groups: ClassVar[bool] = True
    outcome_weight: ClassVar[float] = 0.5
    """Share of the trajectory's advantage; the turn's own advantage has the rest."""
    by_std: bool = True
    """Divide by the standard deviation of the compared values."""

    def compute(self, inputs: AdvantageInputs) -> AdvantageResult:
        turns = find_turns(inputs.mask, inputs.turn_ids)
        episodes = return_statistics(inputs.token_rewards, inputs.mask, inputs.group_ids)
        rewards, sizes = turns.sums(inputs.token_rewards).double(), turns.sums(inputs.token_rewards.abs())
        by_turn = _compared_turns(rewards, sizes, turns.mask, turns.at_starts(inputs.turn_ids), inputs, self)
        mixed = (1 - self.outcome_weight) * by_turn + self.outcome_weight * _norm(episodes, self)[:, None]
        return _on_turns(mixed, turns, inputs)


def _onwards(rewards: Tensor, turns: TurnLayout, gamma_turn: float) -> Tensor:
    """[B, K]: discounted return from each turn on, in float64."""
    exact = rewards.double()
    return discounted_returns(exact, turns.mask, torch.full_like(exact, gamma_turn))


def _compared_turns(
    values: Tensor, sizes: Tensor, compared: Tensor, keys: Tensor, inputs: AdvantageInputs, advantage: Gigpo | TurnGrpo
) -> Tensor:
    """norm of [B, K] values among the compared turns of a group that have the same key; 0 for other turns.

    `sizes` are sums of the absolute rewards, which bound the rounding error of the values.
    """
    groups = inputs.group_ids[:, None].expand_as(keys)[compared]
    rounding = rounding_error(sizes[compared], inputs.token_rewards.dtype)
    statistics = group_statistics(values[compared], pair_ids(groups, keys[compared]), rounding)
    return torch.zeros_like(values).masked_scatter(compared, _norm(statistics, advantage))


def _norm(statistics: GroupStatistics, advantage: Gigpo | TurnGrpo) -> Tensor:
    return statistics.standardised() if advantage.by_std else statistics.centred


def _on_turns(per_turn: Tensor, turns: TurnLayout, inputs: AdvantageInputs) -> AdvantageResult:
    return AdvantageResult(advantages=turns.spread(per_turn.to(inputs.token_rewards.dtype)))


class Reinforce(Advantage, kind="reinforce"):
    """Discounted return from each sampled token on, without a baseline (Williams 1992).

    R = r + gamma R', and R = r + gamma gamma_turn R' at a turn's end. With gamma 1 a turn's tokens share one return,
    discounted by turns only. Observations neither discount nor cut.
    """

    along_tokens: ClassVar[bool] = True
    gamma: Share = 1.0
    """Discount per sampled token."""
    gamma_turn: Share = 1.0
    """Discount per turn."""

    def compute(self, inputs: AdvantageInputs) -> AdvantageResult:
        ends = find_turns(inputs.mask, inputs.turn_ids).ends
        discounts = torch.full_like(inputs.token_rewards, self.gamma)
        discounts = torch.where(ends, discounts * self.gamma_turn, discounts)
        return AdvantageResult(advantages=discounted_returns(inputs.token_rewards, inputs.mask, discounts))


class ReinforcePp(Reinforce, kind="reinforce_pp"):
    """`reinforce`'s returns, whitened over all sampled tokens of the batch (REINFORCE++, Hu 2025).

    The paper's reward is the outcome at the last token minus beta kl at each, which is how rewards are placed for it
    (`Advantage.outcome_minus_kl`).
    """

    outcome_minus_kl: ClassVar[bool] = True

    def compute(self, inputs: AdvantageInputs) -> AdvantageResult:
        return AdvantageResult(advantages=whiten(super().compute(inputs).advantages, inputs.mask))


class Remax(Advantage, kind="remax"):
    """Undiscounted return from each sampled token on, minus the greedy rollout's return (ReMax, Li et al. 2023).

    With the reward at the end, as in the paper, this is R minus the greedy R on all tokens.
    """

    along_tokens: ClassVar[bool] = True
    needs_greedy: ClassVar[bool] = True

    def compute(self, inputs: AdvantageInputs) -> AdvantageResult:
        if inputs.greedy_returns is None:
            raise ValueError("remax needs the return of each group's greedy episode as baseline.")
        returns = discounted_returns(inputs.token_rewards, inputs.mask, torch.ones_like(inputs.token_rewards))
        above = returns - inputs.greedy_returns[:, None].to(returns)
        return AdvantageResult(advantages=torch.where(inputs.mask, above, 0.0))


class Arpo(Advantage, kind="arpo"):
    """Raw return R on all tokens (first family of RAGEN: identity normalisation)."""

    def compute(self, inputs: AdvantageInputs) -> AdvantageResult:
        return broadcast_to_tokens(
            return_statistics(inputs.token_rewards, inputs.mask, inputs.group_ids).values, inputs
        )


class Brpo(Advantage, kind="brpo"):
    """(R - mean) / (std + epsilon) over the whole batch, each trajectory once (first family of RAGEN).

    Assumes similar tasks: all trajectories of an easy task look good beside those of a hard one.
    """

    def compute(self, inputs: AdvantageInputs) -> AdvantageResult:
        batch = return_statistics(inputs.token_rewards, inputs.mask, torch.zeros_like(inputs.group_ids))
        return broadcast_to_tokens(batch.standardised(), inputs)


ADVANTAGES: dict[str, type[Advantage]] = choices(
    *(Grpo, DrGrpo, Rloo, Opo, Gpg, PassAtK, ReinforcePpBaseline),  # within a group
    *(Gigpo, TurnGrpo),  # within a group, turn by turn
    *(Gae, TurnGae, StepGae, BiLevelGae),  # with a critic
    *(Reinforce, ReinforcePp, Remax, Arpo, Brpo),
    *(Clone, Preference),  # for stored trajectories
)
