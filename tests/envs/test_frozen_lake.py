from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.core.random_streams import stream
from turnwise.envs.answers import format_answer
from turnwise.envs.frozen_lake.env import FrozenLake
from turnwise.envs.frozen_lake.lake import MOVES, Lake, generate_lake, shortest_path


def in_turns(actions, per_turn=5):
    return [format_answer(actions[i : i + per_turn]) for i in range(0, len(actions), per_turn)]


def placed(lake, player, **params):
    """An environment with this lake."""
    env = FrozenLake({"size": lake.size, **params}, rng=stream("test"))
    env.lake, env.player = lake, player
    return env


LAKE = Lake(size=4, start=(0, 0), goal=(3, 3), holes=frozenset({(1, 1), (0, 3)}))


def test_the_solver_wins_every_map_through_the_protocol(started, steps):
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
def test_every_map_can_be_solved_within_the_limit(size, frozen, longest, seed):
    lake = generate_lake(stream(seed), size=size, frozen=frozen, longest=longest)
    assert lake.start != lake.goal and not {lake.start, lake.goal} & lake.holes
    way = shortest_path(lake, lake.start)
    assert 1 <= len(way) <= longest
    cell = lake.start
    for move in way:
        assert cell != lake.goal
        cell = lake.after(cell, move)
        assert cell not in lake.holes
    assert cell == lake.goal


@pytest.mark.parametrize("limits", [{"max_actions": 3}, {"max_turns": 1, "max_actions_per_turn": 2}, {"max_turns": 1}])
def test_maps_respect_all_limits_together(started, limits):
    for index in range(30):
        env = started("frozen_lake", index, size=8, **limits).env
        assert len(env.solve()) <= env.action_budget <= 5


def test_the_way_is_the_shortest():
    assert len(shortest_path(LAKE, (0, 0))) == 6
    walled = Lake(size=4, start=(0, 0), goal=(0, 2), holes=frozenset({(0, 1), (1, 1), (2, 1)}))
    assert shortest_path(walled, (0, 0)) == ["Down"] * 3 + ["Right"] * 2 + ["Up"] * 3
    shut = Lake(size=4, start=(0, 0), goal=(3, 3), holes=frozenset({(0, 1), (1, 0)}))
    assert shortest_path(shut, (0, 0)) is None and shortest_path(shut, (0, 1)) is None


def test_moves_go_where_they_say_and_the_edge_stops_them():
    for move, cell in {"Left": (1, 0), "Down": (2, 1), "Right": (1, 2), "Up": (0, 1)}.items():
        assert LAKE.after((1, 1), move) == cell
    assert LAKE.after((0, 0), "Up") == LAKE.after((0, 0), "Left") == (0, 0)
    assert LAKE.after((3, 3), "Down") == LAKE.after((3, 3), "Right") == (3, 3)


def test_a_hole_ends_it_without_reward():
    env = placed(LAKE, (0, 1))
    assert env.state_key() == "_ P _ O\n_ O _ _\n_ _ _ _\n_ _ _ G"
    outcome = env.step("Down")
    assert (outcome.over, outcome.success, outcome.reward) == (True, False, 0.0)
    assert outcome.text == "_ _ _ O\n_ X _ _\n_ _ _ _\n_ _ _ G"
    assert env.draw().rows[1] == ("ice", "player_in_hole", "ice", "ice")


def test_an_edge_costs_nothing_and_the_goal_pays():
    env = placed(LAKE, (3, 2))
    still = env.step("Down")
    assert not still.over and still.reward == 0.0 and env.player == (3, 2)
    goal = env.step("Right")
    assert goal.success and goal.reward == 1.0 and goal.text.endswith("_ _ _ √")


def test_slippery_ice_leads_a_third_each_way_and_never_back():
    env = placed(LAKE, (2, 2), slippery=True)
    for move, (before, after) in {"Left": ("Up", "Down"), "Down": ("Left", "Right")}.items():
        cells = Counter()
        for _ in range(900):
            env.player = (2, 2)
            env.step(move)
            cells[env.player] += 1
        assert set(cells) == {LAKE.after((2, 2), each) for each in (before, move, after)}
        assert all(250 <= count <= 350 for count in cells.values())


def test_firm_ice_never_slips():
    env = placed(LAKE, (2, 2))
    for _ in range(50):
        env.player = (2, 2)
        env.step("Left")
        assert env.player == (2, 1)


def test_members_start_alike_and_slip_differently(started, steps):
    runners = [started("frozen_lake", 3, member=member, slippery=True, size=8) for member in range(12)]
    assert len({runner.opening.messages[1].content for runner in runners}) == 1
    assert len({steps(runner, ["<answer>Left || Left</answer>"])[0].messages[0].content for runner in runners}) > 1


def test_share_of_ice_is_the_published_one_for_each_kind():
    assert FrozenLake().params.frozen == 0.9
    assert FrozenLake({"slippery": True}).params.frozen == 0.8
    assert FrozenLake({"slippery": True, "frozen": 0.7}).params.frozen == 0.7


def test_holes_are_as_frequent_as_the_parameter_says():
    holes = sum(len(generate_lake(stream(seed), size=8, frozen=0.9, longest=99).holes) for seed in range(200))
    assert 0.08 < holes / (200 * 62) < 0.12


def test_the_prompt_is_terse_and_states_limits_legend_and_actions(started):
    prompt = started("frozen_lake", 0).opening.messages[0].content
    assert len(prompt.split()) <= 80
    assert "P player, _ ice, O hole, G goal, X player in hole, √ player on goal." in prompt
    assert "Actions: Left, Down, Right, Up." in prompt
    assert "At most 5 actions a turn; at most 5 turns and 10 actions in all." in prompt
    assert "slippery" not in prompt
    other = started("frozen_lake", 0, slippery=True, max_actions_per_turn=2, max_turns=6).opening.messages[0].content
    assert "slippery" in other and "At most 2 actions a turn; at most 6 turns and 10 actions in all." in other


def test_the_prompt_does_not_differ_between_episodes(started):
    assert len({started("frozen_lake", index).opening.messages[0].content for index in range(10)}) == 1


def test_every_symbol_of_a_grid_stands_in_the_legend(started):
    for index in range(20):
        system, user = started("frozen_lake", index).opening.messages
        assert all(f"{symbol} " in system.content.splitlines()[1] for symbol in user.content.split())


def test_the_turns_info_says_in_which_state_the_model_acted(started, steps):
    runner = started("frozen_lake", 1)
    (result,) = steps(runner, ["<answer>Up</answer>"])
    assert result.info["state"] == runner.opening.messages[1].content


def test_all_named_moves_are_random_actions():
    env = FrozenLake()
    assert {env.random_action(stream(seed)) for seed in range(50)} == set(MOVES)
