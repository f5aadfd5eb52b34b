import asyncio
import itertools
import re
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnwise.core.errors import UserError
from turnwise.core.random_streams import random_stream
from turnwise.core.task import Task
from turnwise.envs.answers import format_answer
from turnwise.envs.countdown.env import Countdown
from turnwise.envs.countdown.puzzle import (
    CountdownPuzzle,
    evaluate,
    generate_puzzle,
    numbers_in,
    parse_expression,
    random_expression,
    uses_each_at_most_once,
)
from turnwise.envs.registry import spec_of
from turnwise.envs.seeds import seed_for
from turnwise.models.loading.tiny import tiny_tokenizer
from work_for_tests import count_lines

TOKENIZER = tiny_tokenizer()


def start_runner(index=0, split="train", **params):
    """Return a started runner with its `opening`."""
    kind = spec_of(Countdown)
    runner = kind.make(Task(env=kind.name, seed=seed_for(split, index), split=split, params=params))
    runner.opening = asyncio.run(runner.start())
    return runner


def make_env(numbers=(3, 5, 5, 8), target=24, **params):
    env = Countdown({"max_turns": 5, **params}, rng=random_stream("test"))
    env.reset(random_stream("start"))
    env.puzzle = CountdownPuzzle(numbers=numbers, target=target, solution="8 * 3")
    return env


def eval_exactly(text):
    """Evaluate a trusted expression with exact fractions."""
    spelt = re.sub(r"[0-9]+", lambda number: f"Fraction({int(number[0])})", re.sub(r"\s", "", text))
    return eval(spelt, {"Fraction": Fraction})


@pytest.mark.parametrize("params", [{}, {"fewest": 2, "most": 6, "max_turns": 3}, {"largest": 12, "fewest": 4}])
def test_solver_wins_every_puzzle(steps, params):
    for index in range(500 if not params else 100):
        runner = start_runner(index, **params)
        puzzle, (solution,) = runner.env.puzzle, runner.env.solve()
        assert eval_exactly(solution) == puzzle.target and puzzle.target not in puzzle.numbers
        (result,) = steps(runner, [format_answer([solution])])
        assert result.success and result.terminated and result.reward == 1.0 and not result.invalid


def test_puzzles_follow_the_parameters():
    puzzles = [start_runner(index).env.puzzle for index in range(200)]
    assert {len(puzzle.numbers) for puzzle in puzzles} == {3, 4}
    assert all(1 <= number <= 99 for puzzle in puzzles for number in puzzle.numbers)
    assert all(10 <= puzzle.target <= 99 for puzzle in puzzles)
    assert len({puzzle.target for puzzle in puzzles}) > 50 and len(set(puzzles)) == 200
    for sign in "+-*/(":
        assert any(sign in puzzle.solution for puzzle in puzzles)
    other = {"fewest": 5, "most": 5, "largest": 7, "smallest_target": 200, "largest_target": 201}
    puzzle = start_runner(**other).env.puzzle
    assert len(puzzle.numbers) == 5 and max(puzzle.numbers) <= 7 and puzzle.target in (200, 201)


def test_seed_determines_the_puzzle():
    puzzles = [generate_puzzle(random_stream(seed), fewest=3, most=4, largest=99, targets=(10, 99)) for seed in (0, 1)]
    assert puzzles == PINNED


PINNED = [
    CountdownPuzzle(numbers=(54, 22, 89), target=13, solution="89 - (22 + 54)"),
    CountdownPuzzle(numbers=(9, 13, 81, 61), target=16, solution="81 - 61 - (13 - 9)"),
]


def test_splits_share_no_puzzle():
    tasks = {split: {start_runner(index, split).env.puzzle for index in range(50)} for split in ("train", "test")}
    assert not tasks["train"] & tasks["test"]


def test_unreachable_targets_raise_an_actionable_error(monkeypatch):
    monkeypatch.setattr("turnwise.envs.countdown.puzzle.GENERATION_ATTEMPTS", 100)
    with pytest.raises(UserError, match="Found no target from 10 to 99: widen the range of targets or raise largest"):
        generate_puzzle(random_stream(0), fewest=2, most=2, largest=1, targets=(10, 99))


@pytest.mark.parametrize(
    ("params", "line"),
    [
        ({"fewest": 5}, "fewest 5 is above most 4"),
        ({"smallest_target": 100}, "smallest_target 100 is above largest_target"),
    ],
)
def test_contradicting_parameters_are_rejected(params, line):
    with pytest.raises(UserError, match=line):
        start_runner(**params)


def test_rewards_of_correct_close_and_illegal_expressions():
    for action, reward in [("8 * 3", 1.0), ("8 + 3", 0.1), ("8", 0.1), ("24", 0.0), ("8 + 8 + 8", 0.0), ("5+5+5", 0.0)]:
        outcome = make_env().step(action)
        assert outcome.reward == pytest.approx(reward)
        assert outcome.success == outcome.over == (action == "8 * 3")
    assert make_env().step("5 + 5 + 8 * 3").text == "That is 34.\nNumbers: 3 5 5 8\nTarget: 24", "two fives were given"
    paid = make_env(correct_reward=3.0, close_reward=0.5)
    assert (paid.step("8 + 3").reward, paid.step("3 * 8").reward) == (0.5, 2.5)


def test_episode_reward_is_that_of_the_best_expression():
    env = make_env()
    actions = ["3 + 5", "24", "8 - 5", "(5 + 3) * (8 - 5)"]
    assert [env.step(action).reward for action in actions] == pytest.approx([0.1, 0.0, 0.0, 0.9])


def test_feedback_states_the_value_or_rule_and_the_task():
    env = make_env()
    task = "Numbers: 3 5 5 8\nTarget: 24"
    assert env.step("8 / 3").text == f"That is 8/3.\n{task}"
    assert env.step("3 - 8").text == f"That is -5.\n{task}"
    assert env.step("3 + 4").text == f"Use only the numbers, each at most once.\n{task}"
    assert env.step("8 * 3").text == "Correct."


def test_episode_ends_with_its_last_turn(steps):
    tries = [format_answer([action]) for action in ("1 + 1 + 1 + 1 + 1", "no", "7 +")]
    one, several = steps(start_runner(), tries), steps(start_runner(max_turns=3), tries)
    assert len(one) == 1 and one[0].truncated and not one[0].success and not one[0].invalid
    assert [result.invalid for result in several] == [False, True, True]
    assert [result.reward for result in several] == [0.0] * 3 and several[-1].truncated


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1+2*3", 7),
        ("(1 + 2) * 3", 9),
        ("8 - 3 - 2", 3),
        ("8 - (3 - 2)", 7),
        ("24 / 4 / 2", 3),
        ("24 / (4 / 2)", 12),
        ("2 * 3 + 4 * 5", 26),
        ("7 / 2", Fraction(7, 2)),
        ("((3))", 3),
        (" 6×4 ÷ 3\n", 8),
        ("007", 7),
    ],
)
def test_parse_follows_operator_precedence(text, value):
    assert evaluate(parse_expression(text)) == value


HOSTILE = [
    *("", " ", "()", "(", ")", "1 +", "+ 1", "-1", "1 2", "(1", "1)", "1 + (2", "(1)(2)", "2(3)", "1 ++ 2", "1 // 2"),
    *("2 ** 3", "1 = 1", "1.5", "1e3", "1_0", "0x10", "x", "__import__('os')", "1 if 1 else 2", "²", "٣ + ٣", "1 − 2"),
    *("3 + 5\x00", "|| 3", "1 + 8)", "1٣", "5))"),
]
HUGE = ["(" * 10**6, "1+" * 10**6 + "1", "9" * 10**6, " " * 10**6, "-" * 10**6, "1" + " " * 200]


@pytest.mark.parametrize("text", [*HOSTILE, "1 / 0", "8 / (5 - 5)"])
def test_invalid_expression_changes_nothing(text):
    env = make_env(numbers=(1, 0, 8, 5, 5))
    before = env.state_key()
    with pytest.raises(ValueError):
        env.step(text)
    assert env.state_key() == before


@pytest.mark.parametrize("text", HUGE)
def test_overlong_texts_are_rejected(text):
    with pytest.raises(ValueError, match="too long"):
        make_env().step(text)


def test_longest_accepted_texts_are_handled():
    assert evaluate(parse_expression("(" * 99 + "7" + ")" * 99)) == 7
    assert make_env().step("9" * 200).reward == 0.0
    assert make_env().step("9*" * 99 + "9").reward == 0.0


@given(st.one_of(st.text(max_size=30), st.text(alphabet="0123456789+-*/() ×", max_size=20)))
@example("8 * 3")
def test_any_text_is_an_outcome_or_a_value_error(text):
    env = make_env()
    try:
        outcome = env.step(text)
    except ValueError:
        return
    assert outcome.reward in (0.0, 0.1, 1.0)
    assert eval_exactly(text.replace("×", "*")) == 24 if outcome.success else outcome.text.endswith("Target: 24")


@given(st.lists(st.integers(1, 99), min_size=1, max_size=6), st.integers(0, 10**6))
def test_generated_expressions_parse_to_their_value(numbers, seed):
    whole = random_expression(random_stream(seed), numbers)
    assert evaluate(parse_expression(whole.text)) == eval_exactly(whole.text) == whole.value >= 1
    assert sorted(numbers_in(parse_expression(whole.text))) == sorted(numbers)


def test_generated_expressions_have_no_redundant_parentheses():
    for seed in range(300):
        text = random_expression(random_stream(seed), (2, 3, 4, 6)).text
        opens = [match.start() for match in re.finditer(r"\(", text)]
        for start in opens:
            depth = itertools.accumulate((char == "(") - (char == ")") for char in text[start:])
            end = start + next(place for place, level in enumerate(depth) if level == 0)
            bare = text[:start] + text[start + 1 : end] + text[end + 1 :]
            assert eval_exactly(bare) != eval_exactly(text) or parse_expression(bare) != parse_expression(text)
        assert not text.startswith("(") or not text.endswith(")") or len(opens) > 1


@given(st.lists(st.integers(1, 4), max_size=5), st.lists(st.integers(1, 4), max_size=5))
def test_uses_each_at_most_once_counts_duplicates(numbers, available):
    assert uses_each_at_most_once(numbers, available) == all(
        numbers.count(each) <= available.count(each) for each in numbers
    )


def test_random_actions_are_legal_and_differ():
    env = make_env()
    actions = {env.random_action(random_stream(seed)) for seed in range(100)}
    assert len(actions) > 40
    assert {len(numbers_in(parse_expression(action))) for action in actions} == {2, 3, 4}
    assert all(uses_each_at_most_once(numbers_in(parse_expression(action)), (3, 5, 5, 8)) for action in actions)


def test_prompt_states_rules_example_and_limits():
    prompts = {start_runner(index).opening.messages[0].content for index in range(5)}
    assert len(prompts) == 1
    assert prompts.pop() == (
        "Reach the target with an expression of the numbers. Use each number at most once, with + - * / and ( ).\n"
        "The action is the expression. Example: (1 + 2) * 3\n"
        "1 action a turn; at most 1 turn in all.\n"
        "Answer: <answer>action</answer>. You may think first: <think>thoughts</think>."
    )
    assert "at most 5 turns in all" in start_runner(max_turns=5).opening.messages[0].content


def test_prompt_example_is_a_valid_expression():
    example_text = re.search(r"Example: (.*)", Countdown().rules())[1]
    assert evaluate(parse_expression(example_text)) == 9


def test_observation_numbers_are_single_tokens():
    for index in range(20):
        runner = start_runner(index)
        system, user = runner.opening.messages
        puzzle = runner.env.puzzle
        assert user.content == f"Numbers: {' '.join(map(str, puzzle.numbers))}\nTarget: {puzzle.target}"
        assert len(pieces_of(user.content)) == len(puzzle.numbers) + 6
        for text in (system.content, user.content, "Use only the numbers, each at most once.", "That is 8/3."):
            pieces = pieces_of(text)
            assert not [a + b for a, b in itertools.pairwise(pieces) if re.fullmatch(r"\w\w", a[-1] + b[0])]
    assert pieces_of("(10 + 2) * 3") == ["(", "10", " +", " 2", ")", " *", " 3"]


def pieces_of(text):
    ids = TOKENIZER.encode(text, add_special_tokens=False, split_special_tokens=True)
    return [TOKENIZER.decode([each]) for each in ids]


def test_state_key_is_the_task_and_the_reward_so_far():
    env = make_env()
    first = env.state_key()
    env.step("99")
    assert env.state_key() == first
    env.step("8 + 5")
    second = env.state_key()
    env.step("8 - 5")
    assert second != first and env.state_key() == second
    assert make_env(target=25).state_key() != first


def test_picture_shows_numbers_and_target():
    picture = make_env().draw()
    assert picture.rows == (("3", "5", "5", "8"),) and picture.caption == "Target: 24"


def test_generation_and_steps_are_cheap():
    """benchmarks/environments.py measures the time."""
    puzzles = 20
    assert count_lines(lambda: [make_env().step("8 / (5 - 3) + 5") for _ in range(puzzles)]) < 2_000 * puzzles
