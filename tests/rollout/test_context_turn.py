from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexts_for_tests import TEMPLATE_NAMES, TEXTS, Played, Talk, play, renderer_of, talks
from episodes_for_tests import turn_of
from turnwise.core.messages import ImagePart, assistant, system, text_parts, user
from turnwise.models.loading.tiny import tiny_pieces
from turnwise.rollout.context_modes import TurnContext, action_text, clip_middle, observation_text, render_memory

STEPS = Talk(
    opening=(system("Rules."), user("A lake.")),
    answers=((user("You slip."),), (user("Invalid action."),), (user("You fall."),)),
    said=("<think>no idea</think><answer>Left</answer>", "I give up", "<answer>Up || Up</answer>"),
)


def remember(talk: Talk, keep_opening: bool = False, template: str = "tiny", turns: int = 4) -> Played:
    renderer = renderer_of(template)
    return play(talk, TurnContext(renderer, turns=turns, keep_opening=keep_opening), renderer)


def last_context(played: Played, template: str = "tiny") -> str:
    return renderer_of(template).decode(played.witness.contexts[-1])


def test_turn_memory_precedes_the_observation_in_one_user_message() -> None:
    assert last_context(remember(STEPS)) == (
        "<|system|>Rules.<|end|><|user|>"
        "Turn 1\nA lake.\nYou: Left\n\n"
        "Turn 2\nYou slip.\nYou: I give up\n\n"
        "Turn 3, now:\n\nInvalid action.<|end|><|assistant|>"
    )


def test_turn_memory_lists_each_action_below_its_observation() -> None:
    rooms = Talk(
        opening=STEPS.opening,
        answers=tuple((user(f"room {number}"),) for number in range(2, 6)),
        said=tuple("abcd"),
    )
    text = "".join(f"Turn {number}\nroom {number}\nYou: {'abcd'[number - 1]}\n\n" for number in (2, 3))
    assert f"Turn 1\nA lake.\nYou: a\n\n{text}Turn 4, now:\n\nroom 4<|end|>" in last_context(remember(rooms))


def test_turn_memory_has_no_empty_lines_in_place_of_images() -> None:
    image = ImagePart(data=b"png")
    shown = ((user(("", image, "\n_ P")),), (user(("Invalid action.", "\n", image, "\n_ P\nScore 0")),))
    assert [observation_text(messages) for messages in shown] == ["_ P", "Invalid action.\n_ P\nScore 0"]
    assert observation_text([user("a\n"), user([image])]) == "a\n\n", "text stays as it is"


def test_turn_memory_marks_invalid_turns() -> None:
    turn = replace(turn_of([1], [2]), invalid=True, message=assistant("what?"))
    assert render_memory(["seen"], [turn], 4) == "Turn 1\nseen\nYou: what? (invalid)\n\nTurn 2, now:"


def test_turn_memory_keeps_the_last_turns_only() -> None:
    assert "<|user|>Turn 2\nYou slip." in last_context(remember(STEPS, turns=1))
    assert last_context(remember(STEPS, turns=0)) == (
        "<|system|>Rules.<|end|><|user|>Invalid action.<|end|><|assistant|>"
    )


def test_turn_memory_does_not_repeat_a_kept_opening() -> None:
    text = last_context(remember(STEPS, keep_opening=True))
    assert text.count("A lake.") == 1
    assert "<|user|>A lake.<|end|><|user|>Turn 1\nYou: Left\n\nTurn 2" in text


@given(observations=st.lists(TEXTS, min_size=1, max_size=6), chars=st.integers(1, 80), turns=st.integers(0, 6))
def test_turn_memory_is_bounded_in_length(observations: list[str], chars: int, turns: int) -> None:
    made = [turn_of([1], [2]) for _ in observations]
    text = render_memory(observations, made, turns, chars)
    if turns:
        memory_text, _, now = text.rpartition("\n\n")
        assert now == f"Turn {len(made) + 1}, now:"
        assert 0 < len(memory_text) <= chars
    else:
        assert text == ""


def test_turn_memory_drops_oldest_turns_then_clips_the_newest() -> None:
    turns = [replace(turn_of([1], [2]), message=assistant(f"go {number}")) for number in range(3)]
    entry = len("Turn 3\nc\nYou: go 2")
    assert render_memory(["a", "b", "c"], turns, 4, 2 * entry + 2).startswith("Turn 2\nb\nYou: go 1\n\nTurn 3\nc\n")
    assert render_memory(["a", "b", "c"], turns, 4, 2 * entry + 1).startswith("Turn 3\nc\nYou: go 2\n\nTurn 4")
    cut = render_memory(["a", "b", "c" * 500], turns, 4, 40).partition("\n\n")[0]
    assert len(cut) == 40 and cut.startswith("Turn 3\nccc") and " [...] " in cut and cut.endswith("You: go 2")


@given(text=st.text(max_size=30), chars=st.integers(0, 40))
def test_clip_keeps_both_ends(text: str, chars: int) -> None:
    short = clip_middle(text, chars)
    assert len(short) <= chars
    assert short == text or len(short) == chars


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("<think>Up?</think><answer>Left</answer>", "Left"),
        ("<answer>a || b</answer>", "a || b"),
        ("look\n around", "look around"),
        ("<think>never done", "nothing"),
        ("a thought that the prompt opened</think>go", "go"),
        ("", "nothing"),
    ],
)
def test_action_text_is_the_answer_or_the_text_outside_thinking(content: str, expected: str) -> None:
    assert action_text(assistant(content)) == expected


@pytest.mark.parametrize("template", ["tiny", *TEMPLATE_NAMES])
@settings(max_examples=8)
@given(talk=talks())
def test_turn_memory_contains_no_special_tokens(template: str, talk: Talk) -> None:
    """Each context has the special tokens of one with harmless text in it, and no more."""
    first_special = 256 + len(tiny_pieces())
    harmless = replace(
        talk,
        opening=tuple(replace(message, parts=text_parts("x")) for message in talk.opening),
        answers=tuple(tuple(replace(message, parts=text_parts("x")) for message in one) for one in talk.answers),
        said=("x",),
    )
    for context, plain in zip(
        remember(talk, template=template).witness.contexts,
        remember(harmless, template=template).witness.contexts,
        strict=True,
    ):
        assert [token for token in context if token >= first_special] == [
            token for token in plain if token >= first_special
        ]
