"""Trajectories for tests of advantages: drawn at random, or a token each."""

import math
from typing import Any

import torch
from choices_for_tests import choose
from hypothesis import strategies as st
from torch import Tensor

from turnwise.algos.advantage_types import Advantage, AdvantageInputs
from turnwise.algos.advantages import ADVANTAGES

SETTINGS = {
    "whiten": False,
    "gamma": 0.9,
    "lam": 0.8,
    "gamma_turn": 0.7,
    "lam_turn": 0.6,
    "step_weight": 0.5,
    "outcome_weight": 0.3,
}
"""No two alike, so that none can stand for another."""
GROUP_ESTIMATORS = sorted(name for name, advantage in ADVANTAGES.items() if advantage.needs_groups)
NOISE = math.nan
"""Stands wherever the mask is 0: a result that reads it is not a number."""


def random_inputs(seed: int, rows: int, columns: int, density: float, coarse: bool) -> AdvantageInputs:
    """Turns of random length in up to 3 groups, unsampled columns anywhere; `coarse` rewards are whole numbers."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mask = torch.rand(rows, columns, generator=generator) < density
    turn_ids = (torch.rand(rows, columns, generator=generator) < 0.4).cumsum(dim=1)
    states = torch.randint(-1, 3, (rows, columns + 1), generator=generator).gather(1, turn_ids)
    rewards = normal(rows, columns).round() if coarse else normal(rows, columns)
    return AdvantageInputs(
        mask=mask,
        token_rewards=torch.where(mask, rewards, NOISE),
        group_ids=torch.randint(0, 3, (rows,), generator=generator) * 7 - 5,
        turn_ids=torch.where(mask, turn_ids, 77),
        values=torch.where(mask, normal(rows, columns), NOISE),
        bootstrap=normal(rows),
        state_ids=torch.where(mask, states, 77),
        greedy_returns=normal(rows),
    )


@st.composite
def inputs(draw: st.DrawFn) -> AdvantageInputs:
    """Up to 9 trajectories of up to 8 columns; some without a sampled token, some alone in their group."""
    return random_inputs(
        seed=draw(st.integers(0, 2**32 - 1)),
        rows=draw(st.integers(1, 9)),
        columns=draw(st.integers(1, 8)),
        density=draw(st.sampled_from([0.3, 0.7, 1.0])),
        coarse=draw(st.booleans()),
    )


def row_inputs(rewards: list[float], groups: list[int], dtype: torch.dtype = torch.float64) -> AdvantageInputs:
    """Trajectories of one token each, all from one state; a critic and a greedy rollout that say 0."""
    return AdvantageInputs(
        mask=torch.ones(len(rewards), 1, dtype=torch.bool),
        token_rewards=torch.tensor(rewards, dtype=dtype)[:, None],
        group_ids=torch.tensor(groups),
        turn_ids=torch.zeros(len(rewards), 1, dtype=torch.int64),
        values=torch.zeros(len(rewards), 1, dtype=dtype),
        state_ids=torch.zeros(len(rewards), 1, dtype=torch.int64),
        greedy_returns=torch.zeros(len(rewards), dtype=dtype),
    )


def estimator(name: str, **changes: Any) -> Advantage:
    """With those of SETTINGS and of the changes that it has."""
    return choose(ADVANTAGES, name, **SETTINGS | changes)


def compute(name: str, given: AdvantageInputs, **changes: Any) -> Tensor:
    return estimator(name, **changes).compute(given).advantages


def rows_of(given: AdvantageInputs, rows: Tensor | list[int]) -> AdvantageInputs:
    """Some of the trajectories, in this order."""
    return AdvantageInputs(
        mask=given.mask[rows],
        token_rewards=given.token_rewards[rows],
        group_ids=given.group_ids[rows],
        turn_ids=given.turn_ids[rows],
        values=None if given.values is None else given.values[rows],
        bootstrap=None if given.bootstrap is None else given.bootstrap[rows],
        state_ids=None if given.state_ids is None else given.state_ids[rows],
        greedy_returns=None if given.greedy_returns is None else given.greedy_returns[rows],
    )
