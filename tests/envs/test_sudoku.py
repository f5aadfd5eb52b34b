import asyncio
import itertools
import os
import re
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from turnwise.core.errors import UserError
from turnwise.core.random_streams import random_stream
from turnwise.core.task import Task
from turnwise.envs.answers import format_answer
from turnwise.envs.registry import spec_of
from turnwise.envs.seeds import seed_for
from turnwise.envs.sudoku.env import Sudoku
from turnwise.envs.sudoku.puzzle import (
    SudokuPuzzle,
    candidates,
    format_placement,
    generate_puzzle,
    parse_placement,
    peers_of,
    solve_board,
)
from turnwise.models.loading.tiny import tiny_tokenizer
from work_for_tests import count_lines

SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))
TOKENIZER = tiny_tokenizer()

SOLUTION = (1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1)
START = (0, 0, 3, 4, 3, 4, 1, 2, 2, 0, 0, 3, 4, 3, 2, 1)
WIKIPEDIA = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"


def start_runner(index=0, split="train", **params):
    """Return a started runner with its `opening`."""
    kind = spec_of(Sudoku)
    runner = kind.make(Task(env=kind.name, seed=seed_for(split, index), split=split, params=params))
    runner.opening = asyncio.run(runner.start())
    return runner


def make_env(start=START, **params):
    env = Sudoku(params, rng=random_stream("test"))
    env.puzzle = SudokuPuzzle(start=start, solution=SOLUTION)
    env.board = start
    return env


def as_answers(actions, per_turn=5):
    return [format_answer(actions[i : i + per_turn]) for i in range(0, len(actions), per_turn)]


def is_solved(board, size):
    """Return whether every row, column and box has every digit, independent of the code under test."""
    box, digits = {4: 2, 9: 3}[size], set(range(1, size + 1))
    rows = [board[row * size : (row + 1) * size] for row in range(size)]
    boxes = [
        [rows[top + row][left + col] for row in range(box) for col in range(box)]
        for top in range(0, size, box)
        for left in range(0, size, box)
    ]
    return all(set(unit) == digits for unit in [*rows, *zip(*rows, strict=True), *boxes])


def solutions(board, size):
    """All solutions by trial, independent of the code under test."""
    if 0 not in board:
        return [board] if is_solved(board, size) else []
    cell = board.index(0)
    row, col = divmod(cell, size)
    clash = {board[row * size + other] for other in range(size)} | {board[other * size + col] for other in range(size)}
    digits = set(range(1, size + 1)) - clash
    return [each for digit in digits for each in solutions((*board[:cell], digit, *board[cell + 1 :]), size)]


@pytest.mark.parametrize(("params", "count"), [({}, 150 * SOAK), ({"size": 9}, 30 * SOAK)], ids=["4", "9"])
def test_solver_wins_every_puzzle_with_the_exact_reward(steps, params, count):
    for index in range(count):
        runner = start_runner(index, **params)
        actions = runner.env.solve()
        assert len(actions) == runner.env.board.count(0) == runner.env.params.blanks <= runner.env.action_budget
        results = steps(runner, as_answers(actions))
        assert results[-1].success and results[-1].terminated and not any(result.invalid for result in results)
        assert sum(result.reward for result in results) == len(actions) + 10
        assert is_solved(runner.env.board, runner.env.params.size)


@pytest.mark.parametrize("limits", [{"max_actions": 3}, {"max_turns": 1}, {"max_turns": 2, "max_actions_per_turn": 2}])
@pytest.mark.parametrize("size", [4, 9])
def test_blanks_respect_the_action_limits(steps, size, limits):
    for index in range(20):
        runner = start_runner(index, size=size, blanks=32, **limits)
        actions = runner.env.solve()
        assert len(actions) == runner.env.action_budget <= 5
        results = steps(runner, as_answers(actions, runner.env.max_actions_per_turn))
        assert results[-1].success


@settings(max_examples=50 * SOAK)
@given(st.integers(1, 16), st.integers(0, 10**6))
def test_puzzles_have_the_requested_blanks_and_one_solution(blanks, seed):
    puzzle = generate_puzzle(random_stream(seed), size=4, blanks=blanks)
    assert puzzle.start.count(0) == blanks if blanks <= 8 else 8 <= puzzle.start.count(0) <= min(blanks, 12)
    assert solutions(puzzle.start, 4) == [puzzle.solution]


def test_large_puzzles_have_one_solution():
    for seed in range(5):
        puzzle = generate_puzzle(random_stream(seed), size=9, blanks=30)
        assert puzzle.start.count(0) == 30 and solutions(puzzle.start, 9) == [puzzle.solution]
        assert all(given_digit in (0, digit) for given_digit, digit in zip(puzzle.start, puzzle.solution, strict=True))


def test_hard_puzzles_are_generated():
    assert generate_puzzle(random_stream(0), size=9, blanks=50).start.count(0) == 50


def test_puzzles_and_solutions_differ():
    puzzles = [generate_puzzle(random_stream(seed), size=4, blanks=6) for seed in range(600)]
    assert len({puzzle.start for puzzle in puzzles}) == 600
    assert len({puzzle.solution for puzzle in puzzles}) > 200, "there are 288"
    blank = [sum(puzzle.start[cell] == 0 for puzzle in puzzles) for cell in range(16)]
    assert min(blank) > 170 and max(blank) < 280, "every cell is blank about as often"


def test_seed_determines_the_puzzle():
    assert generate_puzzle(random_stream(0), size=4, blanks=6).start == PINNED_4
    assert "".join(map(str, generate_puzzle(random_stream(0), size=9, blanks=30).start)) == PINNED_9


PINNED_4 = (0, 3, 2, 4, 4, 0, 1, 0, 0, 1, 4, 2, 0, 0, 3, 1)
PINNED_9 = "083567910065098470010040605900614358806000109001082746354000861098050030072831590"


def test_splits_share_no_puzzle():
    tasks = {split: {start_runner(index, split).env.puzzle for index in range(50)} for split in ("train", "test")}
    assert not tasks["train"] & tasks["test"] and len(tasks["test"]) == 50


def test_solve_board_finds_a_solution_or_none():
    board = tuple(map(int, WIKIPEDIA))
    solution = solve_board(board)
    assert is_solved(solution, 9) and all(old in (0, new) for old, new in zip(board, solution, strict=True))
    assert solve_board((1, 2, 3, 0, 0, 0, 0, 4, *[0] * 8)) is None, "4 can stand in neither its row nor its box"
    assert solve_board(SOLUTION) == SOLUTION


def test_peers_are_the_row_column_and_box():
    assert set(peers_of(16)[5]) == {4, 6, 7, 1, 9, 13, 0}
    assert set(peers_of(16)[10]) == {8, 9, 11, 2, 6, 14, 15}
    assert {len(peers) for peers in peers_of(81)} == {20} and set(peers_of(81)[40]) >= {30, 32, 48, 50, 36, 44, 4, 76}
    assert candidates(START, 0) == [1] and candidates(START, 9) == [1] and candidates(START, 10) == [4]
    assert candidates((0, 2, *[0] * 14), 0) == [1, 3, 4]


def test_observation_shows_the_board_and_changeable_cells():
    env = make_env()
    board = "   1 2 3 4\n1: _ _ 3 4\n2: 3 4 1 2\n3: 2 _ _ 3\n4: 4 3 2 1"
    assert env.state_key() == board
    outcome = env.step("3,3,4")
    assert outcome.text == env.state_key() == board.replace("2 _ _ 3", "2 _ 4 3") + "\nYour cells: 3,3"
    env.step("place 2 at row 1 col 2")
    assert env.state_key().endswith("\nYour cells: 1,2 3,3")
    assert env.draw().rows[0] == ("empty", "2", "3", "4")


def test_both_placement_forms_are_equivalent():
    for text in ("place 4 at row 3 col 2", "PLACE 4  at ROW 3 column 2", "3,2,4", " 3 , 2,4"[1:], "03,2,4"):
        assert parse_placement(text, 4) == (9, 4)
    assert parse_placement("place 9 at row 1 col 9", 9) == (8, 9)


@given(st.integers(0, 80), st.integers(0, 9))
def test_placements_round_trip(cell, digit):
    assert parse_placement(format_placement(cell, digit, 9), 9) == (cell, digit)


def test_right_digits_pay_one_and_the_last_pays_ten_more():
    env = make_env()
    outcomes = [env.step(action) for action in ("1,1,1", "1,2,2", "3,2,1", "3,3,4")]
    assert [outcome.reward for outcome in outcomes] == [1.0, 1.0, 1.0, 11.0]
    assert [outcome.over for outcome in outcomes] == [outcome.success for outcome in outcomes] == [False] * 3 + [True]


EMPTY_ROOM = (0, 0, 3, 4, 3, 4, 0, 0, 0, 0, 4, 3, 4, 3, 0, 0)
"""A board on which wrong digits that break no rule exist."""


def test_wrong_digit_pays_half_and_its_replacement_the_difference():
    env = make_env(EMPTY_ROOM)
    assert candidates(EMPTY_ROOM, 0) == [1, 2]
    rewards = [env.step(action).reward for action in ("1,1,2", "1,1,1", "1,1,1", "1,1,2", "1,1,0", "1,1,0", "1,1,1")]
    assert rewards == [0.5, 0.5, 0.0, -0.5, -0.5, 0.0, 1.0]
    assert not env.step("1,2,2").over


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ("1,1,3", "its row, column or box has 3."),
        ("1,3,1", "that is not your cell."),
        ("1,3,0", "that is not your cell."),
    ],
)
def test_illegal_placement_costs_a_tenth_and_changes_nothing(action, why):
    env = make_env()
    outcome = env.step(action)
    assert outcome.reward == -0.1 and not outcome.over and env.board == START
    assert outcome.text == f"Not legal: {why}\n{env.state_key()}"


def test_rewards_are_parameters():
    paid = make_env(EMPTY_ROOM, correct_reward=2.0, legal_reward=0.25, illegal_reward=-1.0, solved_reward=5.0)
    assert [paid.step(action).reward for action in ("1,1,2", "1,1,1", "1,1,3")] == [0.25, 1.75, -1.0]
    last = make_env((0, *SOLUTION[1:]), solved_reward=5.0)
    assert last.step("1,1,1").reward == 6.0


def test_illegal_placements_are_valid_answers_unlike_unparsable_ones(steps):
    runner = start_runner()
    given_cell = next(cell for cell, digit in enumerate(runner.env.board) if digit)
    against, unread = steps(runner, [format_answer([format_placement(given_cell, 1, 4)]), "<answer>5</answer>"])
    assert not against.invalid and against.reward == -0.1
    assert unread.invalid and unread.reward == 0.0


HOSTILE = [
    *("", "5", "1,2", "1,2,3,4", "1;2;3", "-1,2,3", "1,2,5", "5,1,1", "1,5,1", "0,1,1", "1,0,1", "1.0,2,3", "1,2,x"),
    *("place 5 at row 1 col 1", "place 1 at row 1", "place one at row 1 col 1", "place 1 at row 0 col 1"),
    *("place 1 at row 1 col 1 now", "place1 at row 1 col 1", "١,٢,٣", "²,1,1", "1,2,3\x00", "2,3,5; import os"),
]
HUGE = [
    "1" * 10**6,
    "1," * 10**6,
    "place " + " " * 10**6,
    "place 1 at row " + "9" * 10**6 + " col 1",
    "1,1," + "0" * 97,
]


@pytest.mark.parametrize("text", HOSTILE + HUGE, ids=lambda text: repr(text[:20]))
def test_invalid_placement_changes_nothing(text):
    env = make_env()

    def step():
        with suppress(ValueError):
            env.step(text)

    with pytest.raises(ValueError):
        env.step(text)
    assert count_lines(step) < 50 and env.board == START


@given(st.one_of(st.text(max_size=30), st.text(alphabet="0123456789, placetrowco", max_size=25)))
@example("1,1,1")
def test_any_text_is_an_outcome_or_a_value_error(text):
    env = make_env()
    try:
        outcome = env.step(text)
    except ValueError:
        assert env.board == START
        return
    assert outcome.reward in (-0.1, 0.0, 0.5, 1.0)


@given(st.sampled_from([4, 9]), st.integers(0, 10**6))
@settings(max_examples=30 * SOAK)
def test_random_play_is_legal_and_solvable_from_every_state(size, seed):
    env, rng = Sudoku({"size": size}, rng=random_stream("test")), random_stream("play", seed)
    env.reset(random_stream(seed))
    total = 0.0
    for _ in range(12):
        outcome = env.step(env.random_action(rng))
        assert outcome.reward != -0.1
        total += outcome.reward
        if outcome.over:
            break
    solved = env.board == env.puzzle.solution
    for action in env.solve():
        assert not solved
        outcome = env.step(action)
        total += outcome.reward
        solved = outcome.success
    assert solved and total == env.puzzle.start.count(0) + 10, "no way to solve it earns more or less than another"


def test_random_action_clears_a_cell_if_no_digit_is_legal():
    env = make_env(EMPTY_ROOM)
    env.board = tuple(digit or 1 for digit in EMPTY_ROOM)
    actions = {env.random_action(random_stream(seed)) for seed in range(100)}
    assert actions == {format_placement(cell, 0, 4) for cell in range(16) if not EMPTY_ROOM[cell]}


def test_solver_fills_the_most_constrained_cell_first():
    env = start_runner(size=9).env
    chosen, most = [], []
    for action in env.solve():
        left = {cell: len(candidates(env.board, cell)) for cell in range(81) if not env.board[cell]}
        cell, _ = parse_placement(action, 9)
        assert left[cell] == min(left.values())
        chosen.append(left[cell])
        most.append(max(left.values()))
        env.step(action)
    assert sum(chosen) < sum(most), "there was a choice"


def test_solver_clears_wrong_cells_first():
    env = make_env(EMPTY_ROOM)
    env.step("1,1,2")
    assert env.solve()[0] == "1,1,0" and "1,1,1" in env.solve()


@pytest.mark.parametrize(("size", "box"), [(4, 2), (9, 3)])
def test_prompt_states_rules_actions_and_limits(size, box):
    prompts = {start_runner(index, size=size).opening.messages[0].content for index in range(3)}
    assert len(prompts) == 1
    prompt = prompts.pop()
    assert f"each {box} by {box} box must have every digit from 1 to {size} once. _ empty." in prompt
    assert "place 3 at row 2 col 1, or the same as 2,1,3 (row, col, digit)" in prompt
    assert "0 to make a cell empty" in prompt
    assert "At most 5 actions a turn; at most 10 turns in all." in prompt
    other = start_runner(size=size, max_actions_per_turn=1, max_turns=40).opening.messages[0].content
    assert "1 action a turn; at most 40 turns in all." in other


def test_prompt_examples_are_equivalent():
    long, short = re.search(r"Action: (.*), or the same as (\S+)", Sudoku().rules()).groups()
    assert parse_placement(long, 4) == parse_placement(short, 4) == (4, 3)


@pytest.mark.parametrize("size", [4, 9])
def test_cells_and_words_are_single_tokens(size):
    runner = start_runner(size=size)
    system, user = runner.opening.messages
    cells = size * size + size
    assert len(pieces_of(user.content)) == cells + 2 * size + size + 2, "marks, colons, newlines, two spaces"
    refused = [
        runner.env.step(action).text
        for action in (format_placement(0, 0, size), format_placement(runner.env.board.index(0), 1, size))
    ]
    for text in (system.content, user.content, *refused, "Not legal: that is not your cell.", "Your cells: 1,2"):
        pieces = pieces_of(text)
        assert not [a + b for a, b in itertools.pairwise(pieces) if re.fullmatch(r"\w\w", a[-1] + b[0])]
    assert pieces_of("2,3,5") == ["2", ",", "3", ",", "5"]
    assert pieces_of("place 5 at row 2 col 3") == ["place", " 5", " at", " row", " 2", " col", " 3"]


def pieces_of(text):
    ids = TOKENIZER.encode(text, add_special_tokens=False, split_special_tokens=True)
    return [TOKENIZER.decode([each]) for each in ids]


def test_other_sizes_are_rejected():
    with pytest.raises(UserError, match=r"env\.params\.size"):
        start_runner(size=6)
    assert start_runner(size=9).env.params.blanks == 30 and start_runner().env.params.blanks == 6


def test_generation_and_steps_are_cheap():
    """benchmarks/environments.py measures the time."""
    assert (
        max(count_lines(lambda s=seed: generate_puzzle(random_stream(s), size=9, blanks=30)) for seed in range(10))
        < 100_000
    )
    env = make_env(EMPTY_ROOM)
    costs = [count_lines(lambda digit=digit: env.step(f"1,1,{digit}")) for digit in (2, 0) * 20]
    assert max(costs) < 500
