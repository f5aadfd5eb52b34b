"""What goes into an advantage estimator and what comes out. Rows are whole trajectories.

    mask           1 1 0 0 1 1 1 0     two turns and the observation between them, padded at the end
    token_rewards  . r . . . . r .     a turn's reward sits on its last sampled token; KL terms on any
    turn_ids       0 0 . . 1 1 1 .     a turn ends where its id does, whatever it earned
    values         V V . . V V V .     before the token was chosen
    state_ids      s s . . q q q .     in which the turn acted

What stands where the mask is 0 is never read.
"""

from collections.abc import Callable
from dataclasses import dataclass
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
    outcome_less_kl: bool = False
    """Published for one outcome at the last token less a KL at every token: by default its rewards are placed so, and
    the KL counts in the reward."""
    needs_greedy: bool = False
    """Reads `baseline`: each group has one greedy member more, which is not trained on."""


def on_all_tokens(per_trajectory: Tensor, inputs: AdvantageInputs) -> AdvantageResult:
    """A trajectory's number [B] on all of its sampled tokens."""
    column = per_trajectory.to(inputs.token_rewards.dtype)[:, None]
    return AdvantageResult(advantages=torch.where(inputs.mask, column, 0.0))
