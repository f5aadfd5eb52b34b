"""Expressions with work left are not results: `17*23` equals 391 and is not an answer."""

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.envs.math_code.problems import make_problem
from turnwise.rewards.math_answers import compare, equal, exact
from turnwise.rewards.math_form import is_result
from turnwise.rewards.math_text import parse
from turnwise.rewards.math_tree import build_tree, is_literal, is_simplified

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
    ("1.23456778e5", "1111111/9"),
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
    ("1/x+2/x^2", r"\frac{x+2}{x^2}"),
    (r"\frac{x^2}{x+1}", "x^2/(1+x)"),
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
    ("2.5/3", "5/6"),
    ("3*2^5", "96"),
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
    ("x+y+0", "x+y"),
    ("(-x)(-y)", "xy"),
    ("1xy", "xy"),
    ("x^1y", "xy"),
    ("sqrt(x)^2+1", "x+1"),
    ("(x^2-1)(x-1)^{-1}", "x+1"),
    (r"\sqrt{\frac12}", r"\frac{\sqrt2}{2}"),
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
    ("1^y x+1", "x+1"),
]


@pytest.mark.parametrize(("answer", "reference"), [*NUMBERS, *NOTATIONS, *FORMULAS])
def test_math_accepts_results(answer: str, reference: str) -> None:
    assert is_result(answer, reference) and compare(answer, reference)


@pytest.mark.parametrize(("answer", "reference"), [*UNEVALUATED, *UNSIMPLIFIED])
def test_math_rejects_equal_expressions_with_work_left(answer: str, reference: str) -> None:
    assert compare(answer, reference), "the value is right"
    assert not is_result(answer, reference)


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
    if value is not None and len(str(value)) < 300 and not term.isdigit():
        reduced = term.strip("()") == str(value)
        assert equal(term, value) == reduced and equal(str(value), value)


@given(st.fractions(-1000, 1000, max_denominator=50), st.sampled_from([2, 3, 10]))
def test_fractions_must_be_in_lowest_terms(value: Fraction, factor: int) -> None:
    assert is_literal(build_tree(parse(str(value))))
    assert not is_literal(build_tree(parse(f"{value.numerator * factor}/{value.denominator * factor}")))


@pytest.mark.parametrize("text", ["-" * 390 + "1", "sqrt " * 70 + "2", "^".join("x" * 150), "+".join("x" * 200)])
def test_is_result_bounds_the_depth_of_expressions(text: str) -> None:
    assert not is_result(text, "x^2+1")


def test_simplified_polynomials_may_have_many_terms() -> None:
    assert is_simplified(build_tree(parse("+".join(f"{power}x^{power + 1}" for power in range(2, 50)))))


@pytest.mark.parametrize("text", [r"\sqrt{1018081}", r"\sqrt{8}x", "x^0y", "8^{2}x"])
def test_is_simplified_finds_roots_and_powers_to_compute(text: str) -> None:
    assert not is_simplified(build_tree(parse(text)))


def test_parse_bounds_exponents_of_numbers() -> None:
    assert exact("1e1200") == 10**1200
    for text in ("1e1201", "1e-1201", "1e9999", "1e" + "9" * 300):
        with pytest.raises(ValueError, match="too large"):
            parse(text)
