import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexts_for_tests import TEMPLATE_NAMES, Talk, play, renderer_of, talks, window
from turnwise.core.messages import Message, system, user
from turnwise.core.protocols import Observation
from turnwise.core.trajectory import Turn
from turnwise.render.renderer import Renderer
from turnwise.rollout.context import EMPTY_OBSERVATION, FullContext

STEPS = Talk(
    opening=(system("Rules."), user("Where is the key?")),
    answers=tuple((user(f"room {number}"),) for number in range(1, 7)),
    said=("a0", "a1", "a2", "a3", "a4", "a5"),
)


def full_history(
    renderer: Renderer, opening: tuple[Message, ...], turns: list[Turn], talk: Talk, first: int
) -> list[int]:
    """The ids of an episode that began with turn `first`, as full history makes them."""
    context = FullContext(renderer)

    async def ids() -> list[int]:
        pending = context.start(Observation(messages=opening))
        made = list(pending.ids)
        for number, turn in enumerate(turns, start=first):
            pending = await context.next(pending, [turn], talk.answers[number])
            made += [*turn.action_ids, *pending.ids]
        return made

    return asyncio.run(ids())


@settings(max_examples=40)
@given(talk=talks(), spare=st.integers(0, 3))
def test_window_as_long_as_the_episode_equals_full_history(talk: Talk, spare: int) -> None:
    renderer = renderer_of("tiny")
    turns = max(0, len(talk.answers) - 1 + spare)
    full = play(talk, FullContext(renderer), renderer)
    windowed = play(talk, window(renderer, turns), renderer)
    assert windowed.trajectory.turns == full.trajectory.turns
    assert windowed.witness.contexts == full.witness.contexts


@pytest.mark.parametrize("template", ["tiny", *TEMPLATE_NAMES])
@settings(max_examples=12)
@given(talk=talks(), keep=st.integers(0, 4), keep_opening=st.booleans())
def test_window_equals_full_history_of_an_episode_that_began_later(
    template: str, talk: Talk, keep: int, keep_opening: bool
) -> None:
    """Whole turns are dropped, `keep` of them stay, and their sampled ids are spliced in."""
    renderer = renderer_of(template)
    played = play(talk, window(renderer, keep, keep_opening=keep_opening), renderer)
    turns, oldest = list(played.trajectory.turns), 0
    has_rules = talk.opening[0].role == "system"
    stays = talk.opening[:1] if has_rules and not keep_opening else talk.opening
    for number, context in enumerate(played.witness.contexts):
        if number - oldest > keep:
            oldest = number - keep
            assert not turns[number].extends
        else:
            assert turns[number].extends == (number > 0)
        opening = talk.opening if oldest == 0 else (*stays, *(talk.answers[oldest - 1] or (EMPTY_OBSERVATION,)))
        assert context == full_history(renderer, opening, turns[oldest:number], talk, oldest)


def test_window_keeps_the_system_message_and_the_last_turns() -> None:
    renderer = renderer_of("tiny")
    played = play(STEPS, window(renderer, 2), renderer)
    assert renderer.decode(played.witness.contexts[5]) == (
        "<|system|>Rules.<|end|><|user|>room 3<|end|><|assistant|>a3<|end|>"
        "<|user|>room 4<|end|><|assistant|>a4<|end|><|user|>room 5<|end|><|assistant|>"
    )
    assert played.trajectory.turns[5].context_ids == tuple(played.witness.contexts[5])


def test_window_keeps_the_opening_if_asked_or_without_system_message() -> None:
    renderer = renderer_of("tiny")
    kept = play(STEPS, window(renderer, 1, keep_opening=True), renderer)
    assert renderer.decode(kept.witness.contexts[3]).startswith(
        "<|system|>Rules.<|end|><|user|>Where is the key?<|end|><|user|>room 2<|end|><|assistant|>a2<|end|>"
    )
    bare = play(Talk(opening=(user("Rules."),), answers=STEPS.answers, said=STEPS.said), window(renderer, 1), renderer)
    assert renderer.decode(bare.witness.contexts[3]).startswith("<|user|>Rules.<|end|><|user|>room 2<|end|>")
