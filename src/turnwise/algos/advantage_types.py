"""What goes into an advantage estimator and what comes out. Rows are whole trajectories.

    mask           1 1 0 0 1 1 1 0     two turns and the observation between them, padded at the end
    token_rewards  . r . . . . r .     a turn's reward sits on its last sampled token; KL terms on any
    turn_ids       0 0 . . 1 1 1 .     a turn ends where its id does, whatever it earned
    values         V V . . V V V .     before the token was chosen
    state_ids      s s . . q q q .     in which the turn acted

What stands where the mask is 0 is never read.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageInputs:
    mask: Tensor  # [B, T] bool
    """1 on sampled tokens. Estimators know no other mask; see `Advantage.along_tokens`."""
    token_rewards: Tensor  # [B, T]
    group_ids: Tensor  # [B] int64, in any order
    turn_ids: Tensor  # [B, T] int64
    """Environment turns: a summary has the number of the turn that it belongs to."""
    values: Tensor | None = None  # [B, T]
    """The critic's; None where the estimator needs none."""
    bootstrap: Tensor | None = None  # [B]
    """Value after the last token, 0 but for rows that a token or time limit cut; None: all 0."""
    state_ids: Tensor | None = None  # [B, T] int64
    """The state in which the token's turn acted, comparable within a group, -1 where unknown; None: not needed."""
    baseline: Tensor | None = None  # [B]
    """Return of the group's greedy rollout, which is not trained on; None: not needed."""

    def __post_init__(self) -> None:
        tokens = (self.token_rewards, self.turn_ids, self.values, self.state_ids)
        if any(each is not None and each.shape != self.mask.shape for each in tokens) or self.mask.dtype != torch.bool:
            raise ValueError("mask must be bool, and rewards, turn ids, values and state ids of its shape")
        rows = (self.group_ids, self.bootstrap, self.baseline)
        if any(each is not None and each.shape != self.mask.shape[:1] for each in rows):
            raise ValueError("group ids, bootstrap and baseline must have the shape of one number a row")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageParams:
    """Each estimator reads only some of them: `Advantage.reads`."""

    gamma: float = 1.0
    """Discount from a sampled token to the next."""
    lam: float = 1.0
    """GAE's lambda between tokens: 1 trusts the rewards alone, less trusts the critic more."""
    gamma_turn: float = 1.0
    """Discount from a turn to the next; where an estimator reads gamma too, a turn's end costs both."""
    lam_turn: float = 1.0
    """GAE's lambda between turns."""
    whiten: bool = False
    """Of estimators with a critic: whiten over the batch, after the returns are taken."""
    whiten_over: Literal["turn", "token"] = "turn"
    """Whether whitening counts each turn once or each of its tokens, where a turn has one advantage."""
    by_std: bool = True
    """Divide by the std of what is compared."""
    episode_weight: float = 1.0
    """gigpo's weight of the whole episode's advantage."""
    step_weight: float = 1.0
    """gigpo's weight of the advantage among steps from the same state."""
    outcome_weight: float = 0.5
    """turn_grpo's share of the whole trajectory's advantage; the turn's own has the rest."""
    epsilon: float = 1e-6
    """Added to what a formula divides by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageResult:
    advantages: Tensor  # [B, T], 0 where the mask is 0
    returns: Tensor | None = None  # [B, T], 0 where the mask is 0
    """What the critic learns to say before each sampled token; None: no critic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantage:
    compute: Callable[[AdvantageInputs, AdvantageParams], AdvantageResult]
    reads: tuple[str, ...] = ()
    """The fields of AdvantageParams that change its result."""
    along_tokens: bool = False
    """Runs along a trajectory's tokens: those that algo.advantage_tokens leaves out are passed over as observations are
    (`placement.restrict`). False: compares whole trajectories or turns, so that a member without an answer still counts
    in its group, and tokens that are left out get 0 afterwards."""
    needs_critic: bool = False
    """Reads `values` and `bootstrap`."""
    needs_groups: bool = False
    """Compares members of a group: a group of one teaches nothing."""
    needs_states: bool = False
    """Reads `state_ids`."""
    outcome_minus_kl: bool = False
    """Published for one outcome at the last token less a KL at every token: by default its rewards are placed so, and
    the KL counts in the reward."""
    needs_greedy: bool = False
    """Reads `baseline`: each group has one greedy member more, which is not trained on."""


def broadcast_to_tokens(per_trajectory: Tensor, inputs: AdvantageInputs) -> AdvantageResult:
    """A trajectory's number [B] on all of its sampled tokens."""
    column = per_trajectory.to(inputs.token_rewards.dtype)[:, None]
    return AdvantageResult(advantages=torch.where(inputs.mask, column, 0.0))


def restrict_to_tokens(inputs: AdvantageInputs, advantage_mask: Tensor) -> AdvantageInputs:
    """The inputs of an estimator that runs along some of the sampled tokens: thinking, answers, or what a rule chose.

    The loss has a mask of its own. Tokens that are left out get advantage 0 and are passed over as observations are:
    what is earned between two tokens that are left in is the first one's reward (the first of all also gets what came
    before it). So a turn's reward outlives its last token, and a trajectory's return does not depend on the mask.
    """
    mask = inputs.mask & advantage_mask
    places = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    before = torch.where(mask, places, -1).cummax(dim=1).values
    target = torch.where(before < 0, mask.long().argmax(dim=1, keepdim=True), before)
    sampled = torch.where(inputs.mask, inputs.token_rewards, 0.0)
    moved = torch.zeros_like(sampled).scatter_add(1, target, sampled)
    return replace(inputs, mask=mask, token_rewards=moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLayout:
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
        """[B, T] -> [B, K]: summed over each turn's sampled tokens."""
        empty = values.new_zeros(self.mask.shape)
        return empty.scatter_add(1, self.number, torch.where(self.tokens, values, 0))

    def at_starts(self, values: Tensor) -> Tensor:
        """[B, T] -> [B, K]: what stands at each turn's first sampled token, 0 where there is no turn."""
        return self.sums(torch.where(self.starts, values, 0))

    def at_ends(self, values: Tensor) -> Tensor:
        """[B, T] -> [B, K]: what stands at each turn's last sampled token, 0 where there is no turn."""
        return self.sums(torch.where(self.ends, values, 0))

    def spread(self, values: Tensor) -> Tensor:
        """[B, K] -> [B, T]: a turn's value on all of its sampled tokens, 0 elsewhere."""
        return torch.where(self.tokens, values.gather(1, self.number), 0)


def find_turns(mask: Tensor, turn_ids: Tensor) -> TurnLayout:
    """From [B, T] each: a turn ends where the next *sampled* token of the row has another id, or there is none."""
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
    """Sampled tokens whose sampled predecessor in the row has another id, or that have none. [B, T]"""
    places = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    latest = torch.where(mask, places, -1).cummax(dim=1).values  # the last sampled place up to here
    before = torch.cat([torch.full_like(latest[:, :1], -1), latest[:, :-1]], dim=1)
    return mask & ((before < 0) | (ids.gather(1, before.clamp(min=0)) != ids))
