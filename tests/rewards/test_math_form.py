"""The reward math: parts of sets, intervals, matrices and equations are results, units agree, questions do not pay."""

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given

from nasty_answers_for_tests import ANSWERS
from turnwise.rewards.factory import build_rubric
from turnwise.rewards.math_form import is_result
from turnwise.rewards.math_units import conflicts
from turnwise.rewards.rubric import Submission
from turnwise.rewards.scoring import score_submission
from turnwise.rewards.services import RewardServices
from work_for_tests import hang_guard

CONTAINERS = [
    (r"\{1, \frac{1}{2}\}", r"\{0.5, 1\}"),
    (r"(-\infty, 2]", r"x \le 2"),
    (r"[0,2] \setminus \{1\}", r"[0,1)\cup(1,2]"),
    (r"(-\infty,2)\cup(2,\infty)", r"x \neq 2"),
    (r"\pm 7", "7, -7"),
    (r"\begin{bmatrix}1&2\\3&4\end{bmatrix}", r"\begin{pmatrix} 1 & 2 \\ 3 & 4\end{pmatrix}"),
    ("f(x) = x^2", r"x^{2}\text{ }"),
    ("2 sin(x) cos(x)", r"\sin(2x)"),
    (r"50\%", "1/2"),
    ("5 miles", "5"),
    (r"\$5", "5"),
    (r"90^\circ", "90"),
    (r"2\frac{1}{2}\text{ cups}", r"\frac{5}{2}\text{ cups}"),
    (r"\{1e3, 2\}", r"\{2, 1000\}"),
    (r"1e3\text{ cm}", r"1000\text{ cm}"),
    (r"x\in\{1,2\}", r"\{1,2\}"),
]
TO_COMPUTE = [
    ("10!", "3628800"),
    (r"\binom{5}{2}", "10"),
    (r"\sum_{i=1}^{10} i", "55"),
    (r"\prod_{i=1}^{3} i", "6"),
    (r"\int_0^1 x dx", r"\frac12"),
    (r"\lim_{x\to 0} \frac{\sin x}{x}", "1"),
    (r"\frac{d}{dx} x^2", "2x"),
    (r"\sqrt[3]{8}", r"2\text{ cm}"),
    (r"\log_2 8", "3"),
    ("|-5|", "5"),
    (r"\lfloor 3.5\rfloor", "3"),
    (r"\gcd(4,6)", "2"),
    (r"\operatorname{lcm}(4,6)", "12"),
    (r"\text{lcm}(4,6)", "12"),
    (r"\sin^2 x+\cos^2 x", "1"),
    (r"x\cos 0+1", "x+1"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}2", r"\begin{pmatrix}2\\4\end{pmatrix}"),
    (r"5\%+1", "1.05"),
    (r"17*23\text{ cm}", r"391\text{ cm}"),
    ("7+8=15", "15"),
    ("2x = 10", "x=5"),
    (r"2x \le 4", r"x \le 2"),
    (r"2 \pm 3", "5,-1"),
    (r"\{17*23, 2\}", r"\{391,2\}"),
    ("[0, 2+3)", "[0,5)"),
    ("(1,2)+(3,4)", "(4,6)"),
    ("2(1,2)", "(2,4)"),
    (r"\{1\}\cup\{2\}", r"\{1,2\}"),
    (r"[0,3]\cap[1,5]", "[1,3]"),
    (r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", "-2"),
    (r"\det\begin{pmatrix}1&2\\3&4\end{pmatrix}", "-2"),
    (r"2\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\4\end{pmatrix}"),
    (r"\begin{pmatrix}1&2\end{pmatrix}\begin{pmatrix}1\\2\end{pmatrix}", "5"),
]
"""Only math-verify can evaluate these."""


@pytest.fixture(scope="module")
def services() -> Iterator[RewardServices]:
    services = RewardServices()
    yield services
    asyncio.run(services.close())


def score(services: RewardServices, answer: str, reference: str, question: str = "?") -> float:
    rubric = build_rubric("math", lambda name: pytest.fail(name), services)
    submission = Submission(question=question, answer=answer, row={"answer": reference})
    return asyncio.run(score_submission(rubric, submission)).reward


@pytest.mark.parametrize(("answer", "reference"), CONTAINERS)
def test_math_accepts_results_that_math_verify_compares(answer: str, reference: str, services: RewardServices) -> None:
    pytest.importorskip("math_verify", reason="math-verify is an optional extra")
    assert is_result(answer, reference) and score(services, answer, reference) == 1


@pytest.mark.parametrize(("answer", "reference"), TO_COMPUTE)
def test_math_rejects_what_math_verify_would_compute(answer: str, reference: str, services: RewardServices) -> None:
    assert not is_result(answer, reference) and score(services, answer, reference) == 0


@pytest.mark.parametrize(
    ("question", "answer", "reference"),
    [
        ("Expand $(x+1)^2$.", "(x+1)^2", "x^2+2x+1"),
        ("Expand $(x+1)^2$.", "(1+x)^2", "x^2+2x+1"),
        ("Factor x^2-1.", "x^2-1", "(x-1)(x+1)"),
        (r"Write \frac{1}{x}+\frac{1}{y} as one fraction.", "1/x+1/y", r"\frac{x+y}{xy}"),
    ],
)
def test_math_rejects_the_question_copied_back(
    question: str, answer: str, reference: str, services: RewardServices
) -> None:
    assert score(services, answer, reference) == 1, "a fair answer to other questions"
    assert score(services, answer, reference, question) == 0
    assert score(services, reference, reference, f"{question} {reference}") == 1


@given(ANSWERS)
def test_is_result_handles_any_text(text: str) -> None:
    with hang_guard():
        for reference in ("7", "x^2+1", r"\{1, 2\}"):
            assert is_result(text, reference, text) in (True, False)
            is_result(reference, text)


UNITS = [
    (r"5\text{ cm}^2", r"5\text{ cm}^3"),
    (r"5\text{ cm}^2", r"5\text{ cm}"),
    (r"5\text{ cm}^{-2}", r"5\text{ cm}^2"),
    (r"5\text{ cm^2}", r"5\text{ cm}^{3}"),
    (r"5\text{ cm}²", r"5\text{ cm}³"),
    ("5 cm^2", r"5\text{ cm}^3"),
    (r"5\text{ km}^2", r"5\text{ cm}^2"),
    (r"5\text{ m/s}", r"5\text{ m s}"),
    (r"5\text{ m/s}", r"5\text{ m/s}^2"),
    (r"5\text{ m}\cdot\text{s}", r"5\text{ m}/\text{s}"),
    (r"5\frac{\text{m}}{\text{s}}", r"5\text{ m s}"),
    (r"5\text{ m}\text{s}^{-1}", r"5\text{ m}\text{s}^{-2}"),
    (r"90^\circ", r"90\text{ rad}"),
    (r"\$5", r"5\text{ cm}"),
]
SAME_UNITS = [
    (r"5\text{ cm}^{2}", r"5\text{ cm}^2"),
    (r"5\text{ cm^2}", r"5\text{ cm}^2"),
    (r"5\text{ cm}²", r"5\text{ cm}^2"),
    (r"5\text{ m s}^{-1}", r"5\text{ m/s}"),
    (r"5\frac{\text{m}}{\text{s}}", r"5\text{ m/s}"),
    (r"5\text{ miles per hour}", r"5\text{ miles/hour}"),
    (r"90^\circ", r"90\text{ degrees}"),
    (r"68^\circ\text{F}", r"68^\circ"),
    (r"\$5", r"5\text{ dollars}"),
    ("3x = 6y", "6y = 3x"),
    ("2+3i", "3i+2"),
]


@pytest.mark.parametrize(("one", "other"), UNITS)
def test_units_differ_in_exponents_and_quotients(one: str, other: str, services: RewardServices) -> None:
    assert conflicts(one, other) and conflicts(other, one)
    assert score(services, one, other) == 0 and score(services, other, one) == 0


@pytest.mark.parametrize(("one", "other"), SAME_UNITS)
def test_equal_units_may_be_written_differently(one: str, other: str) -> None:
    assert not conflicts(one, other) and not conflicts(other, one)


@pytest.mark.parametrize("number", ["1e999999999", "1e-999999999", r"\{1e999999999\}", "1e" + "9" * 300, "1.5e9999"])
def test_math_bounds_exponents(number: str, services: RewardServices) -> None:
    with hang_guard():
        assert score(services, number, "1000") == score(services, number, r"\{1\}") == 0
