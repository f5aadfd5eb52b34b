"""A summary is not a turn of the environment: it shares the number of the turn that follows it."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from advantages_for_tests import TURN_ADVANTAGES
from episodes_for_tests import group_of, trajectory_of, turn_of
from learners_for_tests import estimate_of, make_learner, settings_of
from turnwise.algos.normalisation import Identity
from turnwise.core.trajectory import Group, Turn
from turnwise.data.samples import TokenTable, build_samples
from turnwise.training.estimators.token_rewards import RewardSettings, env_turn_ids, token_rewards


def acts(tokens: int, reward: float, state: str, *, extends: bool = True) -> Turn:
    return turn_of([3] * 9, [4] * tokens, extends=extends, reward=reward, info={"state": state})


def sums_up(tokens: int) -> Turn:
    return turn_of([5], [6] * tokens, info={"summary": True})


def two_members() -> Group:
    """Both act in two turns and meet the same states; the first sums up in between."""
    return group_of(
        [
            [acts(2, 1.0, "start", extends=False), sums_up(3), acts(1, 4.0, "door", extends=False)],
            [acts(1, 0.0, "start", extends=False), acts(2, 2.0, "door")],
        ]
    )


def advantages_of(
    group: Group, critic: str, advantage: str, placement: str | None = None, **settings: Any
) -> list[list[float]]:
    """Advantages of the members' sampled tokens. A critic, if there is one, says 1 everywhere."""
    own = {f"algo__advantage__{name}": value for name, value in settings.items()}
    config = settings_of(critic, algo__kl_coef=0.0, algo__advantage=advantage, algo__placement=placement, **own)
    learner = make_learner(config)
    if learner.critic is not None:
        with torch.no_grad():
            learner.critic.head.bias.fill_(1.0)
    found = estimate_of([group], learner, config)
    assert found is not None
    rows: list[list[float]] = [[] for _ in group.trajectories]
    for sample, advantages in zip(found.samples, found.advantages, strict=True):
        rows[sample.trajectory] += advantages[sample.mask].tolist()
    return rows


def test_env_turn_ids_count_environment_turns() -> None:
    turn, summary = acts(1, 0.0, "s"), sums_up(1)
    kinds = {"t": turn, "s": summary}
    for given, numbers in {"ttt": [0, 1, 2], "tsttsts": [0, 1, 1, 2, 3, 3, 3], "ts": [0, 0], "s": [0], "": []}.items():
        trajectory = trajectory_of([kinds[each] for each in given])
        assert list(trajectory.env_turn_ids) == numbers, given


GAE = {"whiten": False, "gamma_turn": 0.5}
GROUP = {"by_std": False}

BY_HAND: dict[str, tuple[str, dict[str, Any], list[list[float]]]] = {
    # delta = r + 0.5 V' - V: 0.5 and 3 for the first member, -0.5 and 1 for the second; A_0 = delta_0 + 0.5 A_1
    "turn_gae": ("head", GAE, [[2.0] * 2 + [3.0] * 4, [0.0, 1.0, 1.0]]),
    "step_gae": ("head", GAE, [[2.0] * 2 + [3.0] * 4, [0.0, 1.0, 1.0]]),
    # inside a turn A = 0.5 - 1 + 0.5 A', back from the turn's advantage at its last token
    "bi_level_gae": ("head", GAE | {"gamma": 0.5}, [[0.5, 2.0, -0.5, 0.0, 1.0, 3.0], [0.0, 0.0, 1.0]]),
    # 1 + 0.5 * 4 and 4; 0 + 0.5 * 2 and 2
    "reinforce": ("no critic", {"gamma_turn": 0.5}, [[3.0] * 2 + [4.0] * 4, [1.0, 2.0, 2.0]]),
    # half of 1 against 0 in the first turn, 4 against 2 in the second; half of the outcomes 5 against 2
    "turn_grpo": ("no critic", GROUP, [[1.0] * 2 + [1.25] * 4, [-1.0, -1.25, -1.25]]),
    # from "start" on 3 against 1, from "door" on 4 against 2; outcomes 5 against 2
    "gigpo": (
        "no critic",
        GROUP | {"gamma_turn": 0.5},
        [[2.5] * 6, [-2.5] * 3],
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_summary_shares_the_env_turn_that_follows(name: str) -> None:
    critic, settings, expected = BY_HAND[name]
    found = advantages_of(two_members(), critic, name, **settings)
    assert found == [pytest.approx(row) for row in expected]


def test_every_advantage_of_turns_is_tested() -> None:
    assert TURN_ADVANTAGES - {"reinforce_pp"} == set(BY_HAND), "compute it by hand for BY_HAND"


def test_reinforce_pp_whitens_returns_discounted_by_environment_turns() -> None:
    found = advantages_of(two_members(), "no critic", "reinforce_pp", gamma_turn=0.5, placement="turn")
    returns = torch.tensor([3.0, 3.0, 4.0, 4.0, 4.0, 4.0, 1.0, 2.0, 2.0])
    assert [*found[0], *found[1]] == pytest.approx(((returns - 3.0) / returns.std()).tolist())  # the mean is 27 / 9


def test_adaptive_discount_measures_distance_in_env_turns() -> None:
    config = settings_of("head", algo__advantage="turn_gae", algo__advantage__gamma_turn="adaptive")
    group = two_members()
    many = replace(group, trajectories=group.trajectories * 16)
    found = estimate_of([many], make_learner(config), config)
    assert found is not None and found.critic_fit is not None
    assert set(found.critic_fit) == {0, 1}


def test_summary_at_the_end_belongs_to_the_last_env_turn() -> None:
    cut = trajectory_of([acts(1, 1.0, "a", extends=False), acts(1, 2.0, "b"), sums_up(2)])
    table = TokenTable(build_samples([cut]), 1)
    assert env_turn_ids([cut], table).tolist() == [[0, 1, 1, 1]]
    for process, expected in ((False, [1.0, 0.0, 0.0, 2.0]), (True, [pytest.approx(1.0, abs=1e-5), 0.0, 0.0, 2.0])):
        settings = RewardSettings(placement="turn", normalise=Identity(), process=process, separate=None)
        assert token_rewards([cut], table, torch.tensor([0]), settings)[0].tolist() == expected
