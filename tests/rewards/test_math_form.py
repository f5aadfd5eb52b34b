"""An answer is written as a result: `17*23` equals 391 and is not an answer."""

import asyncio
import random
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nasty_answers_for_tests import ANSWERS
from turnwise.envs.math_code.problems import make_problem
from turnwise.rewards.factory import build_rubric
from turnwise.rewards.math_answers import compare, equal, exact
from turnwise.rewards.math_form import is_result
from turnwise.rewards.math_text import parse
from turnwise.rewards.math_tree import build_tree, is_literal, is_simplified
from turnwise.rewards.math_units import conflicts
from turnwise.rewards.rubric import Submission
from turnwise.rewards.scoring import score_submission
from turnwise.rewards.services import RewardServices
from work_for_tests import hang_guard

NUMBERS = [
    ("391", "391"),
    ("391.0", "391"),
    ("0.5", "1/2"),
    ("3/4", "0.75"),
    (r"\frac{-3}{4}", "-3/4"),
    ("3/(-4)", "-3/4"),
    ("(5)", "5"),
    ("1{,}000", "1000"),
    ("1,000", "1000"),
    (r"3\frac{1}{2}", "7/2"),
    ("x = 3", "3"),
    ("1024", "2^{10}"),
    ("1/2", "2/4"),
]
NOTATIONS = [
    ("1e3", "1000"),
    ("1E3", "1000"),
    ("1e+3", "1000"),
    ("1.5e3", "1500"),
    ("1E-3", "0.001"),
    ("1E-3", r"\frac{1}{1000}"),
    ("-2.5e-2", "-1/40"),
    ("1000", "1e3"),
    (r"1\times10^3", "1000"),
    (r"1\times 10^{-3}", "0.001"),
    (r"1.5\cdot 10^3", "1500"),
    ("1.5*10^3", "1500"),
    ("1.5×10^3", "1500"),
    (r"6.02e23", r"6.02\times10^{23}"),
    ("1.2345679012345678e-05", "1/81000"),
    ("2e-3x", "0.002x"),
]
"""Scientific notation."""
FORMULAS = [
    (r"3\sqrt2", r"3\sqrt{2}"),
    (r"2\sqrt{3}-1", r"-1+2\sqrt3"),
    (r"\frac{1+\sqrt{5}}{2}", r"\frac{\sqrt5+1}{2}"),
    (r"\frac{1}{\sqrt{2}}", r"1/\sqrt2"),
    (r"\frac{3\pi}{4}", r"3\pi/4"),
    ("1.41421356", "sqrt(2)"),
    ("2^{100}", "2^{100}"),
    ("3*2^{100}", r"2^{100}\cdot 3"),
    ("x^2+2x+1", "(x+1)^2"),
    ("(x+1)^2", "x^2+2x+1"),
    ("x(x+1)", "x^2+x"),
    ("3 - x", "-x+3"),
    (r"\frac12 x", "x/2"),
    ("1/x+1/y", r"\frac{x+y}{xy}"),
    (r"\frac{x+y}{xy}", "1/x+1/y"),
    ("x^{-2}", "1/x^2"),
    (r"\frac{x^2}{x+1}", "x^2/(1+x)"),
]
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
UNEVALUATED = [
    ("17*23", "391"),
    ("(57 - 54) * 97 - 353", "-62"),
    ("391*1", "391"),
    ("391+0", "391"),
    ("(3)(4)", "12"),
    ("782/2", "391"),
    ("391/1", "391"),
    ("2/4", "1/2"),
    (r"\frac{17 \cdot 23}{1}", "391"),
    ("1.5/3", "0.5"),
    ("2^{10}", "1024"),
    ("10^3", "1000"),
    ("25*10^2", "2500"),
    ("0.5*10^3", "500"),
    ("--5", "5"),
    ("-(-5)", "5"),
    (r"3\frac{2}{4}", "7/2"),
    (r"3\frac{5}{2}", "11/2"),
    (r"\sqrt{16}", "4"),
    (r"\sqrt{9+16}", "5"),
    ("x-x+3", "3"),
    ("(x+3)/(x+3)*3", "3"),
    ("4^{50}", "2^{100}"),
]
UNSIMPLIFIED = [
    (r"\sqrt{18}", r"3\sqrt{2}"),
    (r"\sqrt{2}\sqrt{3}", r"\sqrt6"),
    (r"\frac{1}{\sqrt2}", r"\frac{\sqrt2}{2}"),
    (r"\frac{1}{1+\sqrt2}", r"\sqrt2-1"),
    (r"\sqrt{2}+\sqrt{2}", r"2\sqrt{2}"),
    (r"2+\sqrt{2}+3", r"5+\sqrt{2}"),
    ("(1+sqrt(2))^2", r"3+2\sqrt2"),
    (r"(1+\sqrt2)(1-\sqrt3)", r"1-\sqrt3+\sqrt2-\sqrt6"),
    (r"\frac{2+2\sqrt5}{4}", r"\frac{1+\sqrt5}{2}"),
    ("2pi/2", "pi"),
    ("x+x", "2x"),
    ("2*3*x", "6x"),
    ("1x*1", "x"),
    ("x+0", "x"),
    ("x^1", "x"),
    ("x^{1+1}", "x^2"),
    ("x*x", "x^2"),
    ("(x^2)^3", "x^6"),
    ("(-x)^2", "x^2"),
    ("(2x)^3", "8x^3"),
    ("sqrt(x)^2", "x"),
    ("x^2/x", "x"),
    (r"\frac{4x+6}{2}", "2x+3"),
    (r"\frac{6x}{4}", "3x/2"),
    (r"\frac{x^2-1}{x-1}", "x+1"),
    (r"\frac{x^2}{x^2+x}", r"\frac{x}{x+1}"),
    ("(x+1)^2-x^2", "2x+1"),
    ("(x+1)(x-1)+1", "x^2"),
    ("y/y*x", "x"),
    ("(y+1)x-yx", "x"),
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


@pytest.mark.parametrize(("answer", "reference"), [*NUMBERS, *NOTATIONS, *FORMULAS])
def test_math_accepts_results(answer: str, reference: str, services: RewardServices) -> None:
    assert is_result(answer, reference) and score(services, answer, reference) == 1


@pytest.mark.parametrize(("answer", "reference"), CONTAINERS)
def test_math_accepts_results_that_math_verify_compares(answer: str, reference: str, services: RewardServices) -> None:
    pytest.importorskip("math_verify", reason="math-verify is an optional extra")
    assert is_result(answer, reference) and score(services, answer, reference) == 1


@pytest.mark.parametrize(("answer", "reference"), [*UNEVALUATED, *UNSIMPLIFIED])
def test_math_rejects_equal_expressions_with_work_left(answer: str, reference: str, services: RewardServices) -> None:
    assert compare(answer, reference), "the value is right"
    assert not is_result(answer, reference) and score(services, answer, reference) == 0


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


@pytest.mark.parametrize("level", [1, 2, 3])
def test_math_code_answers_are_literals(level: int) -> None:
    for seed in range(200):
        problem = make_problem(random.Random(seed), level)
        copied = problem.question.removeprefix("What is ").removesuffix("?").removesuffix(", as a fraction")
        assert equal(str(problem.answer), problem.answer)
        assert not equal(copied, problem.answer) and not equal(problem.question, problem.answer)
        if exact(copied) is not None:
            assert exact(copied) == problem.answer, "the copy has the right value"


OPERATIONS = st.sampled_from(["+", "-", "*", "/", "^"])
TERMS = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, OPERATIONS, inner).map(lambda each: f"({''.join(each)})"),
    max_leaves=6,
)


@given(TERMS)
def test_equal_accepts_no_arithmetic(term: str) -> None:
    value = exact(term)
    if value is not None and not term.isdigit():
        reduced = term.strip("()") == str(value)
        assert equal(term, value) == reduced and equal(str(value), value)


@given(st.fractions(-1000, 1000, max_denominator=50), st.sampled_from([2, 3, 10]))
def test_fractions_must_be_in_lowest_terms(value: Fraction, factor: int) -> None:
    assert is_literal(build_tree(parse(str(value))))
    assert not is_literal(build_tree(parse(f"{value.numerator * factor}/{value.denominator * factor}")))


@given(ANSWERS)
def test_is_result_handles_any_text(text: str) -> None:
    with hang_guard():
        for reference in ("7", "x^2+1", r"\{1, 2\}"):
            assert is_result(text, reference, text) in (True, False)
            is_result(reference, text)


@pytest.mark.parametrize("text", ["-" * 390 + "1", "sqrt " * 70 + "2", "^".join("x" * 150), "+".join("x" * 200)])
def test_is_result_bounds_the_depth_of_expressions(text: str) -> None:
    assert not is_result(text, "x^2+1")


def test_simplified_polynomials_may_have_many_terms() -> None:
    assert is_simplified(build_tree(parse("+".join(f"{power}x^{power + 1}" for power in range(2, 50)))))


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
