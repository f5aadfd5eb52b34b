"""math_code and code_tests: exact comparison of answers, and tests that submitted code cannot fool."""

import asyncio
import random
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.messages import assistant
from turnwise.core.protocols import StepResult
from turnwise.core.task import Task
from turnwise.envs.code_tests.env import CodeTests
from turnwise.envs.math_code.problems import PROBLEM_GENERATORS
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for
from turnwise.rewards.math_answers import equal, exact


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        (" -12. ", -12),
        ("1,234", 1234),
        ("12 345 678", 12345678),
        ("3/4", Fraction(3, 4)),
        ("0.75", Fraction(3, 4)),
        (".5", Fraction(1, 2)),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"-\frac{3}{4}", Fraction(-3, 4)),
        (r"\boxed{7}", 7),
        ("$5$", 5),
        ("(1 + 2) * 3", 9),
        ("-6/8", Fraction(-3, 4)),
    ],
)
def test_exact_accepts_many_notations(text: str, value: Fraction | int) -> None:
    assert exact(text) == value


@pytest.mark.parametrize(
    "text", ["", "seven", "__import__('os')", "1/0", "2**9999999", "9" * 500, "1 2", "--", "()", "x = 3"]
)
def test_exact_rejects_other_text(text: str) -> None:
    assert exact(text) is None


@given(st.text())
def test_exact_never_raises(text: str) -> None:
    exact(text)


@given(st.fractions(-10_000, 10_000, max_denominator=1000))
def test_equal_accepts_only_the_same_number(value: Fraction) -> None:
    assert equal(str(value), value) and equal(f"{float(value):.9f}", value)
    assert not equal(str(value + 1), value) and not equal(str(-value - 1), value)
    assert equal(str(value + Fraction(1, 10**7)), value) is False, "only a decimal may be rounded"


@pytest.mark.parametrize("maker", PROBLEM_GENERATORS, ids=lambda maker: maker.__name__)
@pytest.mark.parametrize("level", [1, 2, 3])
def test_problems_depend_on_seed_and_level(maker: Any, level: int) -> None:
    assert [maker(random.Random(seed), level) for seed in range(5)] == [
        maker(random.Random(seed), level) for seed in range(5)
    ]
    assert len({maker(random.Random(seed), level).question for seed in range(40)}) > 10


def submit(*codes: str) -> tuple[list[StepResult], CodeTests]:
    return asyncio.run(submit_in_an_episode(*codes))


async def submit_in_an_episode(*codes: str, **params: Any) -> tuple[list[StepResult], CodeTests]:
    kind = load_spec("code_tests")
    env = kind.make(Task(env="code_tests", seed=seed_for("train", 4), params=kind.check_params(params)))
    await env.start()
    assert isinstance(env.env, CodeTests)
    results = [await env.step(assistant(f"```python\n{code or env.env.exercise.code}\n```")) for code in codes]
    await env.close()
    return results, env.env


def test_submission_rewards_sum_to_the_best_share() -> None:
    results, _ = submit("def f(xs): return None", "")
    assert [each.over for each in results] == [False, True]
    assert results[1].success and sum(each.reward for each in results) == pytest.approx(1.0)
    assert "0 of 6 tests pass" in results[0].messages[0].content


def test_last_failed_submission_ends_the_episode() -> None:
    results, _ = submit(*["def f(xs): return None"] * 3)
    assert [each.over for each in results] == [False, False, True]
    assert not results[-1].success and sum(each.reward for each in results) == 0


def test_feedback_does_not_reveal_hidden_tests() -> None:
    (result,), env = submit("def f(xs): return 12345")
    text = result.messages[0].content
    assert all(str(case) in text for case in env.exercise.shown)
    assert not any(f"f({case})" in text for case in env.exercise.hidden if case not in env.exercise.shown)


CHEATS = {
    "prints its own verdict": "print('tested:[true, \"[]\"]' * 50)\ndef f(xs): return None",
    "equals everything": "class A(list):\n    def __eq__(self, o): return True\n    def __repr__(self): return '<A>'\n"
    "def f(xs): return A()",
    "raises": "def f(xs): raise SystemExit",
    "ends at once": "import os\nprint('tested:[true, \"0\"]')\nos._exit(0)\ndef f(xs): pass",
    "never ends": "def f(xs):\n    while True: pass",
    "is not code": "this is not python",
    "lacks the function": "x = 1",
    "returns monsters": "def f(xs): return [0] * 10**8",
    "replaces the printer": "import json\njson.dumps = lambda *a: '[true, \"0\"]'\ndef f(xs): return None",
}


def test_cheating_code_does_not_pass() -> None:
    """All in one event loop, which has one sandbox: it takes longer to start than an episode."""

    async def run() -> list[tuple[list[StepResult], CodeTests]]:
        return await asyncio.gather(*(submit_in_an_episode(code, timeout_s=1.0) for code in CHEATS.values()))

    for cheat, ((result,), _) in zip(CHEATS, asyncio.run(run()), strict=True):
        assert not result.success and result.reward < 0.7, cheat
