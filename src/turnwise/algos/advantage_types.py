"""Types of the advantage estimators. Rows are whole trajectories.

    mask           1 1 0 0 1 1 1 0     two turns with an observation in between, padded at the end
    token_rewards  . r . . . . r .     a turn's reward is on its last sampled token; KL terms may be on any
    turn_ids       0 0 . . 1 1 1 .     a turn ends where its id changes, whatever its reward
    values         V V . . V V V .     critic's value before the token was sampled
    state_ids      s s . . q q q .     state in which the turn acted

    starts         1 . . . 1 . . .
    ends           . 1 . . . . 1 .
    turn matrix    r0 r1               [B, K], one column per turn; K is the largest number of turns

Entries where the mask is 0 are never read.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from turnwise.algos.user_code import class_of_function, naming
from turnwise.core.errors import UserError
from turnwise.settings.choice import Choice
from turnwise.settings.needs import (
    FIXED_OPPONENT,
    GROUPS,
    PLAIN_RETURNS,
    PLAYED,
    SINGLE_SCORES,
    SUMMED_REWARDS,
    Need,
)
from turnwise.text.truncation import describe_value

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from turnwise.algos.lazy_torch import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageInputs:
    """Trajectories of a step, one per row: B rows, padded to T tokens. Entries where the mask is 0 are never read."""

    mask: Tensor  # [B, T] bool
    """1 on sampled tokens; see `Advantage.along_tokens` for restricted masks."""
    token_rewards: Tensor  # [B, T]
    """Reward of each turn on its last sampled token; KL terms may be on any."""
    group_ids: Tensor  # [B] int64, in any order
    """Group of the trajectory: equal for episodes of the same task."""
    turn_ids: Tensor  # [B, T] int64
    """Number of the environment turn; a summary has the number of the turn that it belongs to."""
    values: Tensor | None = None  # [B, T]
    """Critic's values; None if the estimator needs none."""
    bootstrap: Tensor | None = None  # [B]
    """Value after the last token, nonzero only for rows truncated by a token or time limit. None if all are 0."""
    state_ids: Tensor | None = None  # [B, T] int64
    """State in which the turn acted, comparable within a group, -1 if unknown. None unless `needs_states`."""
    greedy_returns: Tensor | None = None  # [B]
    """Return of the group's greedy episode, which is not trained on. None unless `needs_greedy`."""

    def __post_init__(self) -> None:
        tokens = (self.token_rewards, self.turn_ids, self.values, self.state_ids)
        if (
            any(token is not None and token.shape != self.mask.shape for token in tokens)
            or self.mask.dtype != torch.bool
        ):
            raise ValueError("The mask must be bool, and rewards, turn ids, values and state ids must have its shape.")
        rows = (self.group_ids, self.bootstrap, self.greedy_returns)
        if any(row is not None and row.shape != self.mask.shape[:1] for row in rows):
            raise ValueError("Group ids, bootstrap and greedy returns must have the shape [B]: one number per row.")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageResult:
    """Result of an advantage function. One without a critic may return the tensor of advantages alone."""

    advantages: Tensor  # [B, T], 0 where the mask is 0
    """Advantage of each sampled token."""
    returns: Tensor | None = None  # [B, T], 0 where the mask is 0
    """Value targets of the critic at each sampled token. None without a critic."""


class Advantage(Choice):
    """An advantage estimator, its settings, and what it needs.

    One of your own, algo.advantage FILE.py:name, is a class derived from `tw.Advantage`, or a function of the inputs
    that needs none of these.
    """

    along_tokens: ClassVar[bool] = False
    """Recursion over a trajectory's tokens: tokens excluded by algo.advantage_tokens are skipped like observations
    (`restrict_to_tokens`). False: compares trajectories or turns, so a member without an answer still counts in its
    group, and excluded tokens get 0 afterwards."""
    needs_critic: ClassVar[bool] = False
    """Reads `values` and `bootstrap`."""
    needs_groups: ClassVar[bool] = False
    """Compares members of a group; a group of one gives advantage 0."""
    needs_states: ClassVar[bool] = False
    """Reads `state_ids`."""
    outcome_minus_kl: ClassVar[bool] = False
    """Published for an outcome at the last token minus a KL term at every token: the default placement for it."""
    needs_greedy: ClassVar[bool] = False
    """Reads `greedy_returns`: each group has one more, greedy member, which is not trained on."""
    compares_pairs: ClassVar[bool] = False
    """Compares the best and the worst member: from stored data it gets pairs with different returns."""
    uses_rewards: ClassVar[bool] = True
    """False: trajectories whose reward is unknown may be trained on."""

    def needs(self) -> list[Need]:
        setting = f"algo.advantage {self.kind}"
        needs = []
        if self.needs_groups:
            without = "choose algo.advantage gae or reinforce_pp"
            needs.append(Need(GROUPS, f"{setting} compares the members of a group", without))
        if self.needs_greedy:
            other = "choose another algo.advantage"
            scale = f"{setting} subtracts the return of a greedy episode, in the units of the environment"
            needs += [
                Need(PLAYED, f"{setting} needs episodes that are played", other),
                Need(SINGLE_SCORES, f"{setting} scores a greedy episode on its own", other),
                Need(PLAIN_RETURNS, scale, other),
                Need(SUMMED_REWARDS, scale, other),
                Need(FIXED_OPPONENT, f"{setting} adds a greedy episode per group, which needs a fixed opponent", other),
            ]
        return needs

    @abstractmethod
    def compute(self, inputs: AdvantageInputs) -> AdvantageResult:
        """Return one advantage per token, and the critic's targets if it needs one."""

    @classmethod
    def from_function(cls, function: Callable[..., Any]) -> type[Self]:
        return class_of_function(cls, function, setting="algo.advantage", method="compute", argument="inputs")


def compute_advantages(advantage: Advantage, inputs: AdvantageInputs) -> AdvantageResult:
    """Compute the advantages, and check those of the user's code; a tensor alone is a result without returns."""
    with naming(advantage, "algo.advantage") as label:
        returned: Any = advantage.compute(inputs)
    result = AdvantageResult(advantages=returned) if isinstance(returned, torch.Tensor) else returned
    if not isinstance(result, AdvantageResult):
        raise UserError(f"{label} returned {describe_value(returned)}: return a tensor or AdvantageResult.")
    if result.advantages.shape != inputs.mask.shape:
        shapes = f"{list(result.advantages.shape)} instead of {list(inputs.mask.shape)}"
        raise UserError(f"{label} returned the shape {shapes}: one advantage per token, as in inputs.mask.")
    if advantage.needs_critic and result.returns is None:
        raise UserError("algo.advantage needs a critic but returns no AdvantageResult.returns to train it on.")
    return replace(result, advantages=torch.where(inputs.mask, result.advantages, 0.0))


def broadcast_to_tokens(per_trajectory: Tensor, inputs: AdvantageInputs) -> AdvantageResult:
    """Assign each trajectory's number [B] to all of its sampled tokens."""
    column = per_trajectory.to(inputs.token_rewards.dtype)[:, None]
    return AdvantageResult(advantages=torch.where(inputs.mask, column, 0.0))


def restrict_to_tokens(inputs: AdvantageInputs, advantage_mask: Tensor) -> AdvantageInputs:
    """Restrict a token-level estimator to some of the sampled tokens (the loss has its own mask).

    Excluded tokens get advantage 0 and are skipped like observations. Their rewards move to the last included token
    before them, or else to the first one, so a trajectory's return does not depend on the mask.
    """
    mask = inputs.mask & advantage_mask
    positions = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    before = torch.where(mask, positions, -1).cummax(dim=1).values
    target = torch.where(before < 0, mask.long().argmax(dim=1, keepdim=True), before)
    sampled = torch.where(inputs.mask, inputs.token_rewards, 0.0)
    moved = torch.zeros_like(sampled).scatter_add(1, target, sampled)
    return replace(inputs, mask=mask, token_rewards=moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLayout:
    """Maps between token matrices [B, T] and turn matrices [B, K]."""

    tokens: Tensor
    """[B, T] bool: the sampled tokens."""
    starts: Tensor
    """[B, T] bool: the first sampled token of each turn."""
    ends: Tensor
    """[B, T] bool: the last sampled token of each turn."""
    number: Tensor
    """[B, T] int64: the turn's column, 0 where nothing was sampled."""
    mask: Tensor
    """[B, K] bool: turns that the row has."""

    def sums(self, values: Tensor) -> Tensor:
        """[B, T] -> [B, K]: sum over each turn's sampled tokens."""
        empty = values.new_zeros(self.mask.shape)
        return empty.scatter_add(1, self.number, torch.where(self.tokens, values, 0))

    def at_starts(self, values: Tensor) -> Tensor:
        """[B, T] -> [B, K]: value at each turn's first sampled token, 0 where there is no turn."""
        return self.sums(torch.where(self.starts, values, 0))

    def at_ends(self, values: Tensor) -> Tensor:
        """[B, T] -> [B, K]: value at each turn's last sampled token, 0 where there is no turn."""
        return self.sums(torch.where(self.ends, values, 0))

    def spread(self, values: Tensor) -> Tensor:
        """[B, K] -> [B, T]: a turn's value on all of its sampled tokens, 0 elsewhere."""
        return torch.where(self.tokens, values.gather(1, self.number), 0)


def find_turns(mask: Tensor, turn_ids: Tensor) -> TurnLayout:
    """Find the turns: one ends where the next *sampled* token of the row has another id, or there is none."""
    starts = _first_of_run(mask, turn_ids)
    ends = _first_of_run(mask.flip(1), turn_ids.flip(1)).flip(1)
    counts = starts.sum(dim=1)
    longest = max(1, int(counts.max())) if counts.numel() else 1
    return TurnLayout(
        tokens=mask,
        starts=starts,
        ends=ends,
        number=torch.where(mask, starts.cumsum(dim=1) - 1, 0),
        mask=torch.arange(longest, device=mask.device) < counts[:, None],
    )


def _first_of_run(mask: Tensor, ids: Tensor) -> Tensor:
    """Mark sampled tokens whose sampled predecessor has another id or does not exist. [B, T]"""
    positions = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    latest = torch.where(mask, positions, -1).cummax(dim=1).values  # last sampled position so far
    before = torch.cat([torch.full_like(latest[:, :1], -1), latest[:, :-1]], dim=1)
    return mask & ((before < 0) | (ids.gather(1, before.clamp(min=0)) != ids))
