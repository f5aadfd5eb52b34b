"""reasoning-gym: its tasks, its scorers, and the answers that these must not see."""

import asyncio
import random
from importlib.util import find_spec

import pytest

from turnwise.core.errors import UserError
from turnwise.core.messages import assistant
from turnwise.core.task import Task
from turnwise.envs.adapters.package_envs import ReasoningGymEnv
from turnwise.envs.adapters.reasoning_gym_answers import (
    EXTRA_CHECKS,
    SAFE_FORMATS,
    is_arithmetic,
    is_expanded,
    is_formula,
    is_literal,
    is_safe,
)
from turnwise.envs.answers import format_answer
from turnwise.envs.registry import spec_of

TASKS = (
    "basic_arithmetic",
    "binary_matrix",
    "coin_flip",
    "complex_arithmetic",
    "countdown",
    "game_of_life_halting",
    "intermediate_integration",
    "leg_counting",
    "mini_sudoku",
    "n_queens",
    "polynomial_multiplication",
    "pool_matrix",
    "propositional_logic",
    "simple_integration",
    "spiral_matrix",
    "string_insertion",
)
WITHOUT_ANSWER = ("propositional_logic",)
JUNK = ("0", "1", "x", "nan", "inf", "True", "None", "[]", "{}", "-1", "1/0", "((", "0 0", "6*4+1-1", "import os")


@pytest.fixture
def installed(optional_part) -> None:
    if find_spec("reasoning_gym") is None:
        optional_part(f"a package is missing: {spec_of(ReasoningGymEnv).install_command}")


def begun(seed=0, **params):
    kind = spec_of(ReasoningGymEnv)
    runner = kind.make(Task(env=kind.name, seed=seed, params=params))
    runner.opening = asyncio.run(runner.start())
    return runner


def answered(runner, *answers):
    return [asyncio.run(runner.step(assistant(format_answer([answer])))) for answer in answers]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("task", TASKS)
def test_reasoning_gym_accepts_its_own_answer_only(task) -> None:
    for seed in range(3):
        runner = begun(seed, task=task)
        right = runner.env.solve()
        assert (right is None) == (task in WITHOUT_ANSWER)
        for junk in random.Random(seed).sample(JUNK, 5):
            (wrong,) = answered(begun(seed, task=task), junk)
            assert right == [junk] or not wrong.success, f"{junk} passes for {right}"
        if right:
            (result,) = answered(runner, *right)
            assert result.success and result.reward == 1.0 and result.terminated


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("task", "cheat"),
    [
        ("coin_flip", "0"),
        ("complex_arithmetic", "nan"),
        ("game_of_life_halting", "maybe"),
        ("puzzle24", "6*4+1-1"),
    ],
)
def test_reasoning_gym_rejects_cheats(task, cheat) -> None:
    results = [answered(begun(seed, task=task), cheat)[0] for seed in range(5)]
    assert not any(result.success for result in results) and sum(result.reward for result in results) == 0


@pytest.mark.usefixtures("installed")
def test_reasoning_gym_rewards_the_best_try() -> None:
    runner = begun(task="countdown", max_turns=4)
    (right,) = runner.env.solve()
    first, second, unread, last = answered(runner, "1+1", "1+2", "eval('1')", right)
    assert (first.reward, second.reward, unread.reward) == (0.05, 0.0, 0.0) and unread.invalid and not first.invalid
    assert last.success and last.reward == pytest.approx(0.95)
    assert "Not right." in first.messages[0].content and right not in first.messages[0].content


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("task", ["leg_counting", "pool_matrix"])
def test_reasoning_gym_seeds_give_different_tasks(task) -> None:
    assert len({begun(seed, task=task).env.text for seed in range(4)}) == 4


@pytest.mark.usefixtures("installed")
def test_reasoning_gym_single_try_ends_the_episode() -> None:
    (result,) = answered(begun(), "no number")
    assert result.terminated and not result.success and result.reward == 0


@pytest.mark.usefixtures("installed")
def test_reasoning_gym_applies_options_and_success_at() -> None:
    many = begun(options={"min_animals": 9, "max_animals": 9}).env.text
    assert many.count(",") >= 7 > begun(options={"min_animals": 2, "max_animals": 2}).env.text.count(",")
    (lenient,) = answered(begun(task="countdown", success_at=0.05), "1+1")
    assert lenient.success and lenient.reward == 0.05


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("params", "line"),
    [
        ({"task": "leg_countin"}, 'did you mean "leg_counting"'),
        ({"task": "codeio"}, "code that a model wrote"),
        ({"options": {"legs": 3}}, "rejects these options"),
        ({"options": {"min_animals": -4}}, "rejects these options"),
    ],
    ids=str,
)
def test_reasoning_gym_explains_invalid_settings(params, line) -> None:
    with pytest.raises(UserError, match=line) as caught:
        begun(**params)
    assert "\n" not in str(caught.value)


HOSTILE = (
    "__import__('os').system('touch x')",
    "().__class__.__base__.__subclasses__()",
    "open('x')",
    "exec('1')",
    "x.__class__",
    "lambda: 1",
    "a if b else c",
    "[f(1)]",
    "9**9**9**9",
    "(9**9)**(9**9)",
    "9 ** 9 ** 9",
    "1e999999999",
    "'a'*10**9",
    "1<<99999999",
    "10**10000",
    "x!",
    "f'{1}'",
    "a@b",
    "ｅｖａｌ(1)",
    "1;2",
    "1#2",
    "eval",
    "0.1.real",
    "99999999999999999999",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_is_formula_rejects_calls_and_huge_powers(text) -> None:
    assert not is_arithmetic(text)
    assert not is_formula(text)
    assert not is_literal(text) or not set("(*<@{") & set(text)


@pytest.mark.parametrize("text", ["3*x**2 - 2*x + 1", "exp(-x)*sin(x) + C", "x**(-1/2)", "2.5*X**3/4", "sqrt(x)", ""])
def test_is_formula_accepts_formulas(text) -> None:
    assert is_formula(text)


def test_is_safe_always_accepts_the_reference() -> None:
    assert all(is_safe(task, "f.g(1)", "f.g(1)") and not is_safe(task, "f.g(1)", "f.g(2)") for task in SAFE_FORMATS)
    assert is_safe("leg_counting", "f(1)", "3") and not is_safe("leg_counting", "-inf", "3")
    assert is_arithmetic("(25 - 3) * 2/4") and is_literal("[['a', 'b'], [1, -2.5]]")


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("8*x**2 + 22*x + 15", True),
        ("15 + 22*x + 8*x**2", True),
        ("2*4*x**2 + 22*x + 3*5", False),
        ("8*x**2 + 10*x + 12*x + 15", False),
        ("2*(4*x**2 + 11*x) + 15", False),
        ("8*x**2 + 22*x + 15 + 0", False),
    ],
)
def test_polynomials_must_be_multiplied_out(answer, right) -> None:
    assert is_expanded(answer, {"answer": "8*x**2 + 22*x + 15"}) is right
    assert EXTRA_CHECKS["polynomial_multiplication"] is is_expanded


@pytest.mark.parametrize(
    ("product", "expanded"),
    [
        ("(x + 1)*(y + 2)", "x*y + 2*x + y + 2"),
        ("x*(x**2 + x + 1)*(y + 2)", "x**3*y + 2*x**3 + x**2*y + 2*x**2 + x*y + 2*x"),
    ],
)
def test_product_with_as_many_terms_as_its_result_is_not_expanded(product, expanded) -> None:
    assert is_expanded(expanded, {"answer": expanded}) and not is_expanded(product, {"answer": expanded})
