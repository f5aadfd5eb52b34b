"""Formulas: equal whichever way they are written, and never run."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from math_answers_for_tests import RIGHT, WRONG
from turnwise.rewards.math_answers import compare, equal, evaluate
from turnwise.rewards.math_text import parse
from work_for_tests import count_lines, hang_guard

MOST_LINES = 150_000
"""Python lines executed to compare an answer of 400 characters at eight points."""
EQUAL = [
    ("(x+1)^2", "x^2+2x+1"),
    ("2xy", "2*y*x"),
    (r"2\sqrt{2}", "sqrt(8)"),
    (r"\frac{x^{2}-1}{x-1}", "x+1"),
    (r"\boxed{\frac{\frac{1}{2}}{3}}", "1/6"),
    ("1/sqrt(2)", "sqrt(2)/2"),
    ("2^(1/3)*2^(1/3)", "4^(1/3)"),
    (r"\pi r^2", "pi*r**2"),
    ("x = 3", "3"),
    ("3", "x=3"),
    ("$12,500$", "12500"),
    ("x - x + 3", "3"),
    ("-2^2", "-4"),
    ("2^3^2", "512"),
    ("2^-3*4", "1/2"),
    ("0.333333333", "1/3"),
    ("1.41421356237", "sqrt(2)"),
    ("(1, 2)", "(1,2)"),
    ("a/b/c", "a/(b*c)"),
    ("√16", "4"),
    ("sqrt(x)^2", "x"),
]
DIFFERENT = [
    ("x", "y"),
    ("x+1", "x-1"),
    ("x^2", "2x"),
    ("y = 3", "x = 3"),
    ("0.33", "1/3"),
    ("1/3", "0.33"),
    ("sqrt(x^2)", "x"),
    ("cat", "act"),
    ("", ""),
    ("sqrt(0-1-x^2)", "x"),
    ("-4", "4"),
    ("1 2", "12"),
    ("1.41", "sqrt(2)"),
    ("0/0", "0"),
]


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_compare_accepts_other_notations(one: str, other: str) -> None:
    assert compare(one, other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_compare_rejects_different_values(one: str, other: str) -> None:
    assert not compare(one, other)


@pytest.mark.parametrize(("answer", "reference"), RIGHT)
def test_compare_accepts_rounded_decimals(answer: str, reference: str) -> None:
    assert compare(answer, reference)


@pytest.mark.parametrize(("answer", "reference"), WRONG)
def test_compare_requires_exact_decimals(answer: str, reference: str) -> None:
    assert not compare(answer, reference)


@given(st.integers(-(10**18), 10**18), st.integers(-3, 3).filter(bool), st.sampled_from(["", ".0", ".000000"]))
def test_compare_rejects_neighbouring_integers(reference: int, off: int, zeros: str) -> None:
    near = f"{reference + off}{zeros}"
    assert not compare(near, str(reference)) and not compare(near, f"{reference}.0")
    assert not equal(near, Fraction(reference))
    assert compare(f"{reference}{zeros}", str(reference)) and equal(f"{reference}{zeros}", Fraction(reference))


def test_compare_close_is_a_relative_error() -> None:
    assert compare("41.8", "42", close=0.01) and not compare("41.5", "42", close=0.01)
    assert not compare("0.333333333", "1/3", close=0.0) and compare("0.75", "3/4", close=0.0)
    assert not compare("83/2", "42", close=0.5), "a fraction is not rounded"


TERMS = st.recursive(
    st.one_of(st.integers(0, 9).map(str), st.sampled_from("xy")),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda each: f"({''.join(each)})"),
    max_leaves=8,
)


@given(TERMS)
def test_compare_on_random_terms(term: str) -> None:
    assert compare(f"2*{term}-{term}", term)
    assert compare(f"0+{term}*1", term)
    assert not compare(f"{term}+1", term)
    assert not compare(f"{term}+x*y*x+7", f"{term}-7")


@given(TERMS)
def test_evaluate_agrees_with_python(term: str) -> None:
    point = {"x": Fraction(7, 3), "y": Fraction(-2)}
    assert evaluate(parse(term), point) == eval(term, {}, {**point})


@given(st.text(alphabet=r"0123456789.xyabsqrtpi+-*/^(){}\frac$, =", max_size=80))
def test_compare_handles_any_text_quickly(text: str) -> None:
    with hang_guard():
        assert count_lines(lambda: compare(text, "x^2+1")) < MOST_LINES


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('x')",
        "2**9999999999",
        "((9^64)^64)^64",
        "x^x^x^x^x^x",
        "9" * 10**6,
        "(" * 10**5,
        "^".join(["x"] * 150),
        "+".join(f"1/(x+{number})^40" for number in range(28)),
        r"\frac{" * 60,
    ],
    ids=lambda text: text[:12],
)
def test_compare_bounds_the_work_of_huge_expressions(text: str) -> None:
    with hang_guard():
        assert not compare(text, "x")
        assert count_lines(lambda: compare(text, "x")) < MOST_LINES


@pytest.mark.parametrize(
    ("text", "expected"),
    [(r"3\frac{1}{2}", "7/2"), (r"-3\dfrac12", "-7/2"), (r"x^2\frac{1}{2}", "x^2/2"), (r"12 \frac{3}{4}", "12.75")],
)
def test_compare_reads_mixed_numbers(text: str, expected: str) -> None:
    assert compare(text, expected)
    assert not compare(r"3\frac{1}{2}", "3/2")
