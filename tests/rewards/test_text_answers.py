"""exact_match ignores punctuation; a sign, an operator or a bracket is not punctuation."""

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.rewards import text_answers
from turnwise.rewards.text_answers import exact_match, f1, normalise_answer, thresholded_f1
from work_for_tests import hang_guard

DIFFERENT = [
    ("-inf", "inf"),
    ("+inf", "-inf"),
    ("-pi", "pi"),
    ("−pi", "pi"),
    ("-x", "x"),
    ("x+y", "x-y"),
    ("x-y", "xy"),
    ("x/y", "xy"),
    ("x*y", "xy"),
    ("a^b", "ab"),
    ("a<b", "a>b"),
    ("a<=b", "a<b"),
    ("a=b", "ab"),
    ("a->b", "a<-b"),
    ("p&q", "p|q"),
    ("~pq", "pq"),
    ("|xy|", "xy"),
    ("fifty%", "fifty"),
    ("AB+", "AB-"),
    ("AB+", "AB"),
    ("O-", "O"),
    ("C++", "C"),
    ("A*", "A"),
    ("(2,3]", "[2,3)"),
    ("(2,3)", "[2,3]"),
    ("{2,3}", "(2,3)"),
    ("(2,3)", "2,3"),
    ("(0, 1]", "[0, 1)"),
    ("(-inf, 2]", "[-inf, 2)"),
    ("(x, y)", "[x, y]"),
    ("f(x)", "fx"),
    ("[x]", "x"),
    ("{5}", "5"),
    ("2*3*4", "234"),
    ("(x+y)z", "x+yz"),
]
SAME = [
    ("The  Eiffel Tower!", "eiffel tower"),
    ("U.S.", "US"),
    ("don't", "dont"),
    ("Smith, John", "Smith John"),
    ("Anglo-Saxon", "anglosaxon"),
    ("x-ray", "xray"),
    ("(Paris)", "Paris"),
    ("[Paris]", "Paris"),
    ("Paris (France).", "Paris France"),
    ("(5)", "5"),
    ("(-5)", "-5"),
    ("−5", "-5"),
    ("**New York**", "New York"),
    ("*Paris*", "paris"),
    ("__Paris__", "paris"),
    ("'Paris'", "Paris"),
    ("$x$", "x"),
    (r"\pi", "pi"),
    ("foo_bar", "foobar"),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_exact_match_keeps_signs_operators_and_brackets(one: str, other: str) -> None:
    assert exact_match(one, other) == exact_match(other, one) == 0
    assert exact_match(one, one) == exact_match(other, other) == 1


@pytest.mark.parametrize(("one", "other"), SAME)
def test_exact_match_ignores_punctuation(one: str, other: str) -> None:
    assert exact_match(one, other) == exact_match(other, one) == 1


def test_exact_match_of_punctuation_is_by_text() -> None:
    assert exact_match("?!", "?!") == 1 and exact_match("", "?!") == exact_match("...", "?!") == 0


@given(st.text(alphabet="ab1 ()[]{}*-+.,$'", max_size=40))
def test_exact_match_of_equal_texts_is_1(text: str) -> None:
    assert exact_match(text, f" {text.upper()} ") == 1


def test_normalise_answer_takes_linear_time() -> None:
    with hang_guard():
        for text in ("(" * 10**6, "(a " * 10**5, "[a " * 10**5, "*a " * 10**5, "**" * 10**5, "a-" * 10**5):
            normalise_answer(text)


@pytest.mark.parametrize("score", [exact_match, f1, partial(thresholded_f1, at_least=0.0, precision=0.0)])
def test_endless_answer_is_wrong_without_being_read(
    score: Callable[[str, str], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = "word " * 30_000
    assert score(reference, reference) == 1, "a long answer to a long reference is read"
    monkeypatch.setattr(text_answers, "normalise_answer", lambda text: pytest.fail("normalising it takes long"))
    assert score("7" * 100_010, "7") == 0
