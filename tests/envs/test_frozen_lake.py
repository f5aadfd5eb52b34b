from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.core.random_streams import random_stream
from turnwise.envs.answers import format_answer
from turnwise.envs.frozen_lake.env import MOVES, FrozenLake, Lake, generate_lake, shortest_path


def in_turns(actions, per_turn=5):
    return [format_answer(actions[i : i + per_turn]) for i in range(0, len(actions), per_turn)]


def make_env(lake, player, **params):
    """Return an environment with this lake."""
    env = FrozenLake({"size": lake.size, **params}, rng=random_stream("test"))
    env.lake, env.player = lake, player
    return env


LAKE = Lake(size=4, start=(0, 0), goal=(3, 3), holes=frozenset({(1, 1), (0, 3)}))


def test_solver_wins_every_map(started, steps):
    for index in range(100):
        runner = started("frozen_lake", index)
        actions = runner.env.solve()
        assert 1 <= len(actions) <= 10
        results = steps(runner, in_turns(actions))
        assert [result.reward for result in results] == [0.0] * (len(results) - 1) + [1.0]
        assert results[-1].success and results[-1].terminated
        assert "√" in results[-1].messages[0].content


@settings(deadline=None, max_examples=60)
@given(st.integers(4, 8), st.floats(0, 1), st.integers(1, 20), st.integers(0, 10**6))
def test_every_map_is_solvable_within_the_limit(size, frozen, max_moves, seed):
    lake = generate_lake(random_stream(seed), size=size, frozen=frozen, max_moves=max_moves)
    assert lake.start != lake.goal and not {lake.start, lake.goal} & lake.holes
    path = shortest_path(lake, lake.start)
    assert 1 <= len(path) <= max_moves
    cell = lake.start
    for move in path:
        assert cell != lake.goal
        cell = lake.move(cell, move)
        assert cell not in lake.holes
    assert cell == lake.goal


@pytest.mark.parametrize("limits", [{"max_actions": 3}, {"max_turns": 1, "max_actions_per_turn": 2}, {"max_turns": 1}])
def test_maps_respect_all_limits_together(started, limits):
    for index in range(30):
        env = started("frozen_lake", index, size=8, **limits).env
        assert len(env.solve()) <= env.action_budget <= 5


def test_shortest_path_is_shortest():
    assert len(shortest_path(LAKE, (0, 0))) == 6
    walled = Lake(size=4, start=(0, 0), goal=(0, 2), holes=frozenset({(0, 1), (1, 1), (2, 1)}))
    assert shortest_path(walled, (0, 0)) == ["Down"] * 3 + ["Right"] * 2 + ["Up"] * 3
    shut = Lake(size=4, start=(0, 0), goal=(3, 3), holes=frozenset({(0, 1), (1, 0)}))
    assert shortest_path(shut, (0, 0)) is None and shortest_path(shut, (0, 1)) is None


def test_moves_follow_their_direction_and_stop_at_the_edge():
    for move, cell in {"Left": (1, 0), "Down": (2, 1), "Right": (1, 2), "Up": (0, 1)}.items():
        assert LAKE.move((1, 1), move) == cell
    assert LAKE.move((0, 0), "Up") == LAKE.move((0, 0), "Left") == (0, 0)
    assert LAKE.move((3, 3), "Down") == LAKE.move((3, 3), "Right") == (3, 3)


def test_hole_ends_the_episode_without_reward():
    env = make_env(LAKE, (0, 1))
    assert env.state_key() == "_ P _ O\n_ O _ _\n_ _ _ _\n_ _ _ G"
    outcome = env.step("Down")
    assert (outcome.over, outcome.success, outcome.reward) == (True, False, 0.0)
    assert outcome.text == "_ _ _ O\n_ X _ _\n_ _ _ _\n_ _ _ G"
    assert env.draw().rows[1] == ("ice", "player_in_hole", "ice", "ice")


def test_edge_costs_nothing_and_goal_pays():
    env = make_env(LAKE, (3, 2))
    still = env.step("Down")
    assert not still.over and still.reward == 0.0 and env.player == (3, 2)
    goal = env.step("Right")
    assert goal.success and goal.reward == 1.0 and goal.text.endswith("_ _ _ √")


def test_slippery_moves_go_a_third_each_way_and_never_back():
    env = make_env(LAKE, (2, 2), slippery=True)
    for move, sides in {"Left": ("Up", "Down"), "Down": ("Left", "Right")}.items():
        cells = Counter()
        for _ in range(900):
            env.player = (2, 2)
            env.step(move)
            cells[env.player] += 1
        assert set(cells) == {LAKE.move((2, 2), each) for each in (move, *sides)}
        assert all(250 <= count <= 350 for count in cells.values())


def test_ice_that_is_not_slippery_never_slips():
    env = make_env(LAKE, (2, 2))
    for _ in range(50):
        env.player = (2, 2)
        env.step("Left")
        assert env.player == (2, 1)


def test_members_share_the_start_and_slip_differently(started, steps):
    runners = [started("frozen_lake", 3, member=member, slippery=True, size=8) for member in range(12)]
    assert len({runner.opening.messages[1].content for runner in runners}) == 1
    assert len({steps(runner, ["<answer>Left || Left</answer>"])[0].messages[0].content for runner in runners}) > 1


def test_default_share_of_ice_matches_published_results():
    assert FrozenLake().params.frozen == 0.9
    assert FrozenLake({"slippery": True}).params.frozen == 0.8
    assert FrozenLake({"slippery": True, "frozen": 0.7}).params.frozen == 0.7


def test_frequency_of_holes_follows_the_parameter():
    holes = sum(len(generate_lake(random_stream(seed), size=8, frozen=0.9, max_moves=99).holes) for seed in range(200))
    assert 0.08 < holes / (200 * 62) < 0.12


def test_prompt_is_short_and_states_limits_legend_and_actions(started):
    prompt = started("frozen_lake", 0).opening.messages[0].content
    assert len(prompt.split()) <= 80
    assert "P player, _ ice, O hole, G goal, X player in hole, √ player on goal." in prompt
    assert "Actions: Left, Down, Right, Up." in prompt
    assert "At most 5 actions a turn; at most 5 turns and 10 actions in all." in prompt
    assert "slippery" not in prompt
    other = started("frozen_lake", 0, slippery=True, max_actions_per_turn=2, max_turns=6).opening.messages[0].content
    assert "slippery" in other and "At most 2 actions a turn; at most 6 turns and 10 actions in all." in other


def test_prompt_is_the_same_for_all_episodes(started):
    assert len({started("frozen_lake", index).opening.messages[0].content for index in range(10)}) == 1


def test_legend_explains_every_symbol(started):
    for index in range(20):
        system, user = started("frozen_lake", index).opening.messages
        assert all(f"{symbol} " in system.content.splitlines()[1] for symbol in user.content.split())


def test_turn_info_records_the_state_before_the_action(started, steps):
    runner = started("frozen_lake", 1)
    (result,) = steps(runner, ["<answer>Up</answer>"])
    assert result.info["state"] == runner.opening.messages[1].content


def test_random_action_draws_every_move():
    env = FrozenLake()
    assert {env.random_action(random_stream(seed)) for seed in range(50)} == set(MOVES)
