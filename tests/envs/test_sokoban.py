import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.core.random_streams import random_stream
from turnwise.envs.answers import format_answer
from turnwise.envs.grid import DIRECTIONS
from turnwise.envs.sokoban.env import SYMBOLS, Sokoban
from turnwise.envs.sokoban.level import SokobanLevel, generate_level, predecessors, shortest_solution
from work_for_tests import count_lines

ROWS = """
# # # # # #
# _ _ _ # #
# O X P _ #
# _ X _ _ #
# O _ _ _ #
# # # # # #
"""


def parse_level(text):
    cells = {(r, c): symbol for r, row in enumerate(text.split("\n")[1:-1]) for c, symbol in enumerate(row.split())}
    at = {symbols: frozenset(cell for cell, symbol in cells.items() if symbol in symbols) for symbols in ("X√", "O√S")}
    return SokobanLevel(
        size=6,
        floor=frozenset(cell for cell, symbol in cells.items() if symbol != "#"),
        boxes=at["X√"],
        targets=at["O√S"],
        player=next(cell for cell, symbol in cells.items() if symbol in "PS"),
    )


def make_env(text=ROWS, **params):
    env = Sokoban(params, rng=random_stream("test"))
    env.level = parse_level(text)
    return env


def as_answers(actions):
    return [format_answer(actions[i : i + 5]) for i in range(0, len(actions), 5)]


@pytest.mark.parametrize("params", [{}, {"size": 8, "boxes": 2}])
def test_solver_wins_every_level_with_the_exact_reward(started, steps, params):
    for index in range(40):
        runner = started("sokoban", index, **params)
        assert not runner.env.level.solved
        off = len(runner.env.level.boxes) - runner.env.level.boxes_on_targets
        actions = runner.env.solve()
        assert 1 <= len(actions) <= 10
        results = steps(runner, as_answers(actions))
        assert results[-1].success and results[-1].terminated and not results[-1].invalid
        total = sum(result.reward for result in results)
        assert total == pytest.approx(10 + off - 0.1 * len(actions)), "the shortest solutions here push no box off"


@settings(deadline=None, max_examples=40)
@given(st.integers(5, 8), st.integers(1, 2), st.integers(2, 12), st.integers(0, 10**6))
def test_every_level_is_solvable_within_the_limit(size, boxes, max_moves, seed):
    level = generate_level(random_stream(seed), size=size, boxes=boxes, max_moves=max_moves)
    assert not level.solved and len(level.boxes) == len(level.targets) == boxes
    assert level.player in level.floor - level.boxes and level.boxes | level.targets <= level.floor
    assert all(1 <= row <= size - 2 and 1 <= column <= size - 2 for row, column in level.floor)
    here = level
    for move in shortest_solution(level, max_moves=max_moves):
        here = here.move(move)
    assert here.solved


@pytest.mark.parametrize("limits", [{"max_actions": 2}, {"max_turns": 1, "max_actions_per_turn": 3}])
def test_levels_respect_all_limits_together(started, limits):
    for index in range(20):
        env = started("sokoban", index, **limits).env
        assert len(env.solve()) <= env.action_budget <= 3


def test_tightest_limits_still_give_a_level():
    for boxes in (1, 2, 3):
        level = generate_level(random_stream("tight"), size=5, boxes=boxes, max_moves=1)
        assert len(shortest_solution(level, max_moves=1)) == 1


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6))
def test_predecessors_lead_back_to_the_level(seed):
    level = generate_level(random_stream(seed), size=7, boxes=2, max_moves=8)
    steps, pulls = predecessors(level)
    for earlier in steps + pulls:
        assert any(earlier.move(direction) == level for direction in DIRECTIONS)
    assert all(earlier.boxes != level.boxes for earlier in pulls)


def test_generation_is_cheap():
    """benchmarks/environments.py measures the time."""
    levels = 30
    work = count_lines(
        lambda: [generate_level(random_stream(seed), size=6, boxes=1, max_moves=10) for seed in range(levels)]
    )
    assert work < 5_000 * levels


def test_levels_differ_and_are_not_all_easy():
    levels = [generate_level(random_stream(seed), size=6, boxes=1, max_moves=10) for seed in range(100)]
    assert len({(level.floor, level.boxes, level.targets, level.player) for level in levels}) == 100
    lengths = [len(shortest_solution(level, max_moves=10)) for level in levels]
    assert 3 <= sum(lengths) / 100 <= 6 and max(lengths) >= 6


def test_rewards_match_published_values():
    env = make_env()
    assert env.step("Left").reward == pytest.approx(-0.1 + 1.0)
    assert env.state_key().split("\n")[2] == "# √ P _ _ #"
    blocked = env.step("Left")
    assert blocked.reward == pytest.approx(-0.1) and env.level.player == (2, 2)
    down = env.step("Down")
    assert down.reward == pytest.approx(-0.1) and not down.over
    for action in ("Right", "Down"):
        assert env.step(action).reward == pytest.approx(-0.1)
    solved = env.step("Left")
    assert solved.over and solved.success and solved.reward == pytest.approx(-0.1 + 1.0 + 10.0)


def test_pushing_a_box_off_costs_what_pushing_it_on_pays():
    env = make_env("\n# # # # # #\n# _ _ _ # #\n# P √ _ _ #\n# _ X _ _ #\n# _ _ O _ #\n# # # # # #\n")
    assert env.step("Right").reward == pytest.approx(-0.1 - 1.0)


def test_last_box_ends_the_episode():
    env = make_env("\n# # # # # #\n# _ _ _ # #\n# O X P _ #\n# _ _ _ _ #\n# _ _ _ _ #\n# # # # # #\n")
    outcome = env.step("Left")
    assert outcome.over and outcome.success and outcome.reward == pytest.approx(-0.1 + 1.0 + 10.0)


def test_blocked_boxes_do_not_move():
    env = make_env()
    env.level = env.level.with_pieces((1, 2), env.level.boxes)
    assert env.step("Down").reward == pytest.approx(-0.1) and env.level.player == (1, 2)
    env.level = env.level.with_pieces((2, 3), frozenset({(2, 4), (2, 2)}))
    env.step("Right")
    assert env.level.player == (2, 3)
    env.level = env.level.with_pieces((1, 3), env.level.boxes)
    env.step("Up")
    assert env.level.player == (1, 3)


def test_shortest_solution_is_shortest_or_none():
    level = parse_level("\n# # # # # #\n# _ _ _ # #\n# O X _ P #\n# _ _ _ _ #\n# _ _ _ _ #\n# # # # # #\n")
    assert shortest_solution(level, max_moves=10) == ["Left", "Left"]
    assert shortest_solution(level, max_moves=1) is None
    cornered = level.with_pieces((2, 2), frozenset({(1, 1)}))
    assert shortest_solution(cornered, max_moves=30) is None


@pytest.mark.parametrize("symbols", SYMBOLS)
def test_symbol_set_changes_grid_and_legend(started, symbols):
    table = SYMBOLS[symbols]
    assert len(set(table.values())) == len(table)
    for index in range(10):
        system, user = started("sokoban", index, symbols=symbols).opening.messages
        legend = system.content.split("\n")[1]
        assert f"{table['box']} box," in legend and f"{table['player_on_target']} player on target." in legend
        assert set(user.content.split()) <= set(table.values())
        assert all(f"{symbol} " in legend for symbol in user.content.split())
    others = set("".join("".join(other.values()) for name, other in SYMBOLS.items() if name != symbols)) - {"G", "O"}
    assert not any(f"{symbol} box" in legend for symbol in others)


def test_symbols_match_published_ones():
    text = "\n# # # # # #\n# _ _ _ # #\n# √ X _ S #\n# _ _ _ _ #\n# _ _ O _ #\n# # # # # #\n"
    assert make_env(text).state_key() == text.strip()
    assert make_env(text, symbols="other").state_key().split("\n")[2] == "W C B . * W"
    assert make_env(text).draw().rows[2] == ("wall", "box_on_target", "box", "empty", "player_on_target", "wall")


def test_coordinates_list_every_piece():
    env = make_env(observation="coordinates")
    assert env.observe() == "player 2,3\nbox 2,2 3,2\ntarget 2,1 4,1\nwall 1,4"
    assert "Cells are row,column from 0,0 at the top left to 5,5. The border is wall." in env.rules()
    assert "#" not in env.rules()
    assert env.step("Left").text.startswith("player 2,2\nbox 2,1 3,2\n")


def test_prompt_states_limits_and_is_the_same_for_all_episodes(started):
    prompts = {started("sokoban", index, max_actions_per_turn=2).opening.messages[0].content for index in range(5)}
    assert "At most 2 actions a turn; at most 5 turns and 10 actions in all." in prompts.pop() and not prompts
