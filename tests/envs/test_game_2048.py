import asyncio
import math
import os
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.errors import UserError
from turnwise.core.random_streams import random_stream
from turnwise.core.task import Task
from turnwise.envs.answers import format_answer
from turnwise.envs.game_2048.env import SYMBOLS, Game2048, moves_for
from turnwise.envs.game_2048.game import (
    EMPTY_BOARD,
    PLAYER_STYLES,
    SLIDES,
    can_move,
    choose_move,
    empty_cells,
    play_to_target,
    slide,
    slide_line,
    with_new_tile,
)
from turnwise.envs.seeds import seed_for
from turnwise.envs.spec import EnvSpec
from turnwise.models.loading.tiny import tiny_tokenizer

SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))
KIND = EnvSpec(name="game_2048", id="game_2048", cls=Game2048)

BOARD = ((2, 2, 4, 4), (0, 8, 0, 8), (2, 2, 2, 0), (4, 2, 2, 4))
FULL = ((2, 4, 2, 4), (4, 2, 4, 2), (2, 4, 2, 4), (4, 2, 4, 2))

tiles = st.sampled_from((0, 2, 4, 8, 16, 32))
lines = st.tuples(tiles, tiles, tiles, tiles)
boards = st.tuples(lines, lines, lines, lines)


def start_runner(index=0, member=0, split="train", **params):
    """Return a started runner with its `opening`."""
    task = Task(env=KIND.name, seed=seed_for(split, index), split=split, params=params)
    runner = KIND.make(task, member=member)
    runner.opening = asyncio.run(runner.start())
    return runner


def make_env(board, score=0, **params):
    env = Game2048(params, rng=random_stream("test"))
    env.board, env.score, env.actions = board, score, 0
    return env


def turned(board):
    """Rotate by a quarter turn clockwise: left becomes up."""
    return tuple(zip(*board[::-1], strict=True))


def total(board):
    return sum(map(sum, board))


@pytest.mark.parametrize(
    ("line", "result", "merged"),
    [
        ((0, 0, 0, 2), (2, 0, 0, 0), 0),
        ((2, 0, 0, 2), (4, 0, 0, 0), 4),
        ((2, 2, 2, 0), (4, 2, 0, 0), 4),
        ((2, 2, 2, 2), (4, 4, 0, 0), 8),
        ((2, 2, 4, 0), (4, 4, 0, 0), 4),
        ((4, 2, 2, 0), (4, 4, 0, 0), 4),
        ((2, 4, 2, 4), (2, 4, 2, 4), 0),
        ((64, 64, 32, 32), (128, 64, 0, 0), 192),
    ],
)
def test_slide_line_merges_each_tile_once(line, result, merged):
    assert slide_line(line, False) == (result, merged)
    assert slide_line(line[::-1], True) == (result[::-1], merged)


def test_moves_follow_their_direction():
    assert slide(BOARD, "Left") == (((4, 8, 0, 0), (16, 0, 0, 0), (4, 2, 0, 0), (4, 4, 4, 0)), 36)
    assert slide(BOARD, "Right") == (((0, 0, 4, 8), (0, 0, 0, 16), (0, 0, 2, 4), (0, 4, 4, 4)), 36)
    assert slide(BOARD, "Up") == (((4, 2, 4, 4), (4, 8, 4, 8), (0, 4, 0, 4), (0, 0, 0, 0)), 12)
    assert slide(BOARD, "Down") == (((0, 0, 0, 0), (0, 2, 0, 4), (4, 8, 4, 8), (4, 4, 4, 4)), 12)
    assert tuple(SLIDES) == Game2048.action_names == ("Up", "Right", "Down", "Left")


@given(boards, st.integers(0, 3))
def test_moves_are_invariant_under_rotation(board, number):
    names = ("Left", "Up", "Right", "Down")
    moved, merged = slide(board, names[number])
    assert slide(turned(board), names[(number + 1) % 4]) == (turned(moved), merged)


@given(boards, st.sampled_from(tuple(SLIDES)))
def test_slide_keeps_the_sum_and_leaves_no_gap(board, move):
    moved, merged = slide(board, move)
    assert total(moved) == total(board) and merged % 4 == 0
    assert (merged > 0) == (len(empty_cells(moved)) > len(empty_cells(board)))
    assert slide(moved, move)[1] == 0 or merged > 0, "what could merge has merged"


def test_full_board_of_unequal_neighbours_cannot_move():
    assert not can_move(FULL) and choose_move(FULL, PLAYER_STYLES[0]) is choose_move(FULL, PLAYER_STYLES[1]) is None
    assert can_move(((2, 2, 2, 4), *FULL[1:])) and can_move(((0, 4, 2, 4), *FULL[1:]))
    assert can_move(((4, 4, 2, 4), *FULL[1:])), "columns may merge too"


def test_new_tiles_follow_four_chance_and_fill_any_empty_cell():
    rng, board = random_stream("tiles"), ((2, 4, 8, 16), (0, 2, 4, 0), (2, 4, 8, 16), (2, 0, 0, 2))
    found = Counter()
    for _ in range(2000):
        new = with_new_tile(board, rng, four_chance=0.25)
        (cell,) = (cell for cell in empty_cells(board) if cell not in empty_cells(new))
        found[cell, total(new) - total(board)] += 1
    assert {cell for cell, _ in found} == {(1, 0), (1, 3), (3, 1), (3, 2)}
    for cell in empty_cells(board):
        assert 320 < found[cell, 2] < 430 and 90 < found[cell, 4] < 165


@pytest.mark.parametrize(("chance", "tile"), [(0.0, 2), (1.0, 4)])
def test_four_chance_of_zero_or_one_is_exact(chance, tile):
    board = EMPTY_BOARD
    for _ in range(16):
        board = with_new_tile(board, random_stream("x", total(board)), four_chance=chance)
    assert board == ((tile,) * 4,) * 4


def test_move_pays_the_log_of_merged_tiles_and_adds_one_tile():
    env = make_env(BOARD, score=100)
    outcome = env.step("Left")
    assert outcome.reward == pytest.approx(0.1 * math.log2(37)) and not outcome.over
    assert env.score == 136 and outcome.text.endswith("\nScore 136")
    moved = slide(BOARD, "Left")[0]
    assert len(empty_cells(env.board)) == len(empty_cells(moved)) - 1
    assert total(env.board) - total(BOARD) in (2, 4)
    assert all(old in (0, new) for a, b in zip(moved, env.board, strict=True) for old, new in zip(a, b, strict=True))
    assert make_env(BOARD, merge_reward=2.0).step("Up").reward == pytest.approx(2 * math.log2(13))


def test_move_without_effect_is_legal_and_adds_no_tile():
    board = ((2, 4, 0, 0), (4, 2, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0))
    env = make_env(board)
    for action in ("Left", "Up"):
        outcome = env.step(action)
        assert (outcome.reward, outcome.over, env.board) == (0.0, False, board)
    assert env.step("Right").reward == 0.0 and total(env.board) > 12, "a move without a merge pays nothing"


def test_target_wins_and_full_board_loses():
    env = make_env(((64, 64, 0, 0), *EMPTY_BOARD[1:]), target=128)
    outcome = env.step("Right")
    assert outcome.over and outcome.success and outcome.reward == pytest.approx(0.1 * math.log2(129))
    assert outcome.text.startswith("_ _ _ 128\n_ _ _ _\n")
    assert not make_env(((64, 64, 0, 0), *EMPTY_BOARD[1:]), target=256).step("Right").over
    env = make_env(((0, 8, 2, 4), (8, 2, 4, 2), (2, 4, 2, 4), (4, 2, 4, 2)), four_chance=0.0)
    outcome = env.step("Left")
    assert env.board[0] == (8, 2, 4, 2) and not outcome.over, "8 and 8 can merge"
    env = make_env(((0, 16, 8, 2), (8, 2, 4, 8), (2, 4, 2, 4), (4, 2, 4, 2)), four_chance=1.0)
    outcome = env.step("Left")
    assert env.board[0] == (16, 8, 2, 4) and outcome.over and not outcome.success and outcome.reward == 0.0


def test_text_state_and_picture_show_the_same_board():
    env = make_env(((2, 0, 1024, 0), *EMPTY_BOARD[1:]), score=9000)
    assert env.observe() == "2 _ 1024 _\n_ _ _ _\n_ _ _ _\n_ _ _ _\nScore 9000"
    assert env.state_key() == env.observe().rpartition("\n")[0], "a score changes nothing that can come"
    assert env.draw().rows[0] == ("2", "empty", "1024", "empty") and env.draw().caption == "Score 9000"


@pytest.mark.parametrize(
    ("count", "params"),
    [
        (20, {}),
        (20, {"target": 8}),
        (20, {"target": 32, "four_chance": 0.0}),
        (15, {"target": 64, "four_chance": 1.0}),
        (10, {"target": 128, "max_turns": 20, "max_actions_per_turn": 5}),
        (3, {"target": 256}),
        pytest.param(1, {"target": 512}, marks=pytest.mark.soak),
    ],
)
def test_solver_wins_every_game(steps, count, params):
    for index in range(count * SOAK):
        runner = start_runner(index, member=index % 3, **params)
        actions, a_turn = runner.env.solve(), runner.env.max_actions_per_turn
        results = steps(runner, [format_answer(actions[i : i + a_turn]) for i in range(0, len(actions), a_turn)])
        assert results[-1].success and results[-1].terminated, "on this member's luck, as planned"
        assert not any(result.invalid for result in results)
        assert str(runner.env.params.target) in results[-1].messages[0].content.split()


def test_solver_wins_when_asked_after_every_move():
    for index in range(5):
        env = start_runner(index, target=64).env
        for _ in range(env.action_budget):
            outcome = env.step(env.solve()[0])
            if outcome.over:
                break
        assert outcome.success


def test_solve_changes_nothing_and_respects_remaining_actions():
    env = start_runner(1).env
    before = env.board, env.score, env.rng.getstate()
    plan = env.solve()
    assert (env.board, env.score, env.rng.getstate()) == before
    env.actions = env.action_budget - len(plan) + 1
    assert env.solve() != plan
    env.actions = env.action_budget - 3
    assert env.solve() is None
    assert make_env(FULL).solve() is None


def test_look_ahead_wins_more_often():
    def wins(style, count):
        games = [(start_runner(index).env.board, random_stream("luck", index)) for index in range(count)]
        plans = [play_to_target(*game, style, target=512, four_chance=0.1, max_moves=9999) for game in games]
        return sum(plan is not None for plan in plans)

    assert wins(PLAYER_STYLES[0], 8) < 7 and wins(PLAYER_STYLES[1], 2) == 2


def test_members_share_the_start_and_get_different_tiles(steps):
    runners = [start_runner(3, member=member) for member in range(8)]
    assert len({runner.opening.messages[1].content for runner in runners}) == 1
    answers = ["<answer>Left</answer>", "<answer>Down</answer>", "<answer>Left</answer>"]
    assert len({steps(runner, answers)[-1].messages[0].content for runner in runners}) > 4


def test_game_starts_with_two_random_tiles():
    starts = [start_runner(index).env.board for index in range(60)]
    assert {len(empty_cells(board)) for board in starts} == {14}
    assert {tile for board in starts for line in board for tile in line} == {0, 2, 4}
    assert len(set(starts)) > 45


def test_prompt_states_target_chance_legend_actions_and_limits():
    prompt = start_runner().opening.messages[0].content
    assert "Reach the tile 128." in prompt and "4 with chance 0.1, else 2" in prompt and "_ empty." in prompt
    assert "Actions: Up, Right, Down, Left." in prompt
    assert "1 action a turn; at most 100 turns in all." in prompt
    assert len(prompt.split()) <= 100
    other = start_runner(target=32, four_chance=0.5, max_actions_per_turn=3, max_actions=40).opening.messages[0].content
    assert "Reach the tile 32." in other and "4 with chance 0.5, else 2" in other and "128" not in other
    assert "At most 3 actions a turn; at most 28 turns and 40 actions in all." in other
    assert len({start_runner(index).opening.messages[0].content for index in range(5)}) == 1


def test_max_turns_follows_the_target_unless_set():
    assert Game2048().max_turns == 100 and Game2048({"target": 2048}).max_turns == 1540
    assert Game2048({"target": 16, "max_turns": 50}).max_turns == 50


@pytest.mark.parametrize(
    ("params", "line"),
    [
        ({"target": 100}, "power of two: choose 64 or 128"),
        ({"target": 4}, "env.params.target"),
        ({"target": 4096}, "env.params.target"),
        ({"max_turns": 99}, "env\\.params: target 128 needs 100 actions, and the limits allow 99: raise max_turns"),
        ({"target": 16, "max_actions": 15}, "target 16 needs 16 actions, and the limits allow 15"),
        ({"max_turns": 33, "max_actions_per_turn": 3}, "the limits allow 99"),
        ({"four_chance": 1.5}, "env.params.four_chance"),
        ({"targets": 8}, 'did you mean "target"'),
    ],
)
def test_unwinnable_parameters_are_rejected(params, line):
    with pytest.raises(UserError, match=line) as caught:
        KIND.check_params(params)
    assert "\n" not in str(caught.value)


def test_check_params_is_idempotent():
    params = KIND.check_params({"target": 256})
    assert params["max_turns"] == moves_for(256) == 196 and KIND.check_params(params) == params


HOSTILE = ["", "up up", "2", "Up" * 10**6, "\x00", "Oben", "U", "__import__('os')", "9" * 10**6, "Up ||", "||" * 10**5]


@pytest.mark.parametrize("action", HOSTILE, ids=range(len(HOSTILE)))
def test_invalid_action_changes_nothing(steps, action):
    runner = start_runner(max_actions_per_turn=1)
    before = runner.env.board, runner.env.score
    (result,) = steps(runner, [f"<answer>{action}</answer>"])
    assert result.invalid and result.reward == 0.0 and (runner.env.board, runner.env.score) == before


def test_actions_ignore_case_and_spaces(steps):
    (result,) = steps(start_runner(), ["<answer> dOwN </answer>"])
    assert not result.invalid


def test_tiles_and_actions_are_single_tokens():
    tokenizer = tiny_tokenizer()
    for word in [*SYMBOLS.values(), *SLIDES]:
        for text in (word, f" {word}"):
            assert len(tokenizer.encode(text, add_special_tokens=False)) == 1, text
    assert len(tokenizer.encode(make_env(BOARD).state_key(), add_special_tokens=False)) == 19


def test_random_play_ends_every_game(steps):
    for index in range(20):
        runner, rng = start_runner(index), random.Random(index)
        results = steps(runner, [runner.env.random_answer(rng) for _ in range(100)])
        assert results[-1].over and not any(result.invalid for result in results)
        assert sum(result.reward for result in results) > 0
