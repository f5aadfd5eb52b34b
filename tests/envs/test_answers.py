import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnwise.envs.answers import format_answer, match_name, read_answer
from work_for_tests import hang_guard

TAGS = ["<think>", "</think>", "<answer>", "</answer>", "||", " || ", "Up", "\n", "<", ">", "\x00", "√", "<ans"]


@given(st.one_of(st.text(), st.lists(st.sampled_from(TAGS)).map("".join)), st.booleans())
@example("</answer><answer>", True)
@example("<answer></answer>", True)
def test_read_answer_handles_any_text(text, several):
    answer = read_answer(text, several=several)
    assert bool(answer.actions) != bool(answer.problem)
    assert all(action and action == action.strip() for action in answer.actions)
    assert all("<answer>" not in action and "</answer>" not in action for action in answer.actions)
    if several:
        assert all("||" not in action for action in answer.actions)


words = st.text(alphabet="abcUPd 5-", min_size=1).map(str.strip).filter(bool)


@given(st.lists(words, min_size=1), st.none() | st.text(alphabet="abc <>|/"))
def test_read_answer_inverts_format_answer(actions, think):
    assert read_answer(format_answer(actions, think), several=True).actions == tuple(actions)


def test_format_answer_has_a_fixed_format():
    assert format_answer(["Up"]) == "<answer>Up</answer>"
    assert format_answer(["Up", "Right"], think="hm") == "<think>hm</think><answer>Up || Right</answer>"


@pytest.mark.parametrize(
    ("text", "actions"),
    [
        ("<answer>Up || Left</answer>", ("Up", "Left")),
        ("<answer> Up||Left </answer>", ("Up", "Left")),
        ("<answer>Up || </answer>", ("Up",)),
        ("<think><answer>Down</answer></think><answer>Up</answer>", ("Up",)),
        ("thinking was opened by the template</think> <answer>Up</answer>", ("Up",)),
        ("<answer>Up</answer> no, <answer>Left</answer>", ("Left",)),
        ("<answer>Up</answer> no, <answer>Left", ("Up",)),
        ("<answer>Up</answer></answer>", ("Up",)),
        ("<answer>Up <answer>Left</answer>", ("Left",)),
        ("<answer>Up</answer><think>was that right", ("Up",)),
        ("<answer>Up</answer><think>x</think>", ("Up",)),
        ("<think>a</think><answer>Up</answer>\n<think>b</think> done", ("Up",)),
        ("opened by the template</think><answer>Up</answer><think>x</think>", ("Up",)),
        ("<answer>Up</answer><think>no, <answer>Left</answer></think>", ("Up",)),
        ("<answer>Up</answer><think>no</think><answer>Left</answer>", ("Left",)),
        ("<answer>Up</answer><think>a</think><think>b</think>", ("Up",)),
        ("<think>hm</think>\nI go\n<answer>\nUp\n</answer> now", ("Up",)),
    ],
)
def test_read_answer_accepts_variants(text, actions):
    assert read_answer(text, several=True).actions == actions


@pytest.mark.parametrize(
    "text",
    ["", "Up", "<answer>Up", "Up</answer>", "</answer>Up<answer>", "<think><answer>Up</answer>", "<ANSWER>Up</ANSWER>"],
)
def test_read_answer_reports_problems(text):
    assert read_answer(text, several=True).problem == "No answer found."


@pytest.mark.parametrize(
    "text",
    [
        "<think><answer>Up</answer></think>",
        "<answer>Up</answer></think>",
        "<think>a</think><think><answer>Up</answer></think>",
        "<think>a<think><answer>Up</answer></think>",
    ],
)
def test_read_answer_ignores_answers_in_thoughts(text):
    assert read_answer(text, several=True).problem == "No answer found."


def test_read_answer_takes_linear_time():
    """Hundreds of thousands of them: by the square this would take hours."""
    with hang_guard():
        assert read_answer("<think>a</think>" * 200_000 + "<answer>Up</answer>", several=True).actions == ("Up",)
        assert read_answer("<think>" * 400_000, several=True).problem


def test_read_answer_rejects_empty_answers():
    assert read_answer("<answer> || </answer>", several=True).problem == "Empty answer."


def test_read_answer_keeps_the_separator_of_a_single_action():
    assert read_answer("<answer>select a || b</answer>", several=False).actions == ("select a || b",)


def test_match_name_ignores_case():
    assert match_name("uP", ("Down", "Up")) == "Up"
    for other in ("Upp", "U p", "Up.", ""):
        with pytest.raises(ValueError):
            match_name(other, ("Down", "Up"))
