"""Whole conversations through every template and both types of tokenizer."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from render_cases import (
    FAMILIES,
    KINDS,
    ORDINARY,
    SPECIALS,
    WORDS,
    Family,
    case,
    decode,
    own_text,
    presented,
    special_ids,
    spell,
)

from turnwise.core.messages import Message, Role, assistant, text_parts
from turnwise.core.trajectory import Stop
from turnwise.render.renderer import Renderer

FRAGMENTS = (
    *WORDS,
    *SPECIALS,
    *ORDINARY,
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "🧊",
    "é",
    "e\u0301",
    "日本",
    '"',
    "\\",
    "<",
    ">",
)
LETTERS = st.characters(exclude_categories=("Cs",), exclude_characters="▁")  # U+2581 means a space to SentencePiece
TEXTS = st.one_of(
    st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join), st.text(LETTERS, max_size=12), st.just("")
)
ACTIONS = TEXTS.filter(lambda text: "</think>" not in text)


@dataclass(frozen=True)
class Talk:
    opening: list[Message]
    turns: list[tuple[str, Stop, list[Message]]]
    """(text of the action, stop reason, answer of the environment) of each turn."""


def messages_of(roles: list[Role], texts: st.SearchStrategy[str]) -> st.SearchStrategy[list[Message]]:
    return st.tuples(*(texts for _ in roles)).map(
        lambda contents: [
            Message(role=role, parts=text_parts(text)) for role, text in zip(roles, contents, strict=True)
        ]
    )


def talks(texts: st.SearchStrategy[str] = TEXTS) -> st.SearchStrategy[Talk]:
    openings = st.sampled_from([["user"], ["system", "user"], ["user", "user"], ["system", "user", "user"]])
    answers = st.sampled_from([["user"], ["user", "user"], ["tool"], ["tool", "tool"], ["tool", "user"]])
    turn = st.tuples(ACTIONS, st.sampled_from(Stop), answers.flatmap(lambda roles: messages_of(roles, texts)))
    opening = openings.flatmap(lambda roles: messages_of(roles, texts))
    return st.builds(Talk, opening=opening, turns=st.lists(turn, min_size=1, max_size=3))


def end_id(renderer: Renderer, eos_id: int) -> int:
    """Id that ends a turn."""
    return min(renderer.stop_ids - {eos_id}, default=eos_id)


def played(family: Family, kind: str, talk: Talk) -> tuple[list[list[int]], list[list[int]], list[str]]:
    """Context ids and action ids of each turn, then the context of the next turn; action texts."""
    tokenizer, renderer = case(family.name, kind)
    contexts, actions, texts = [renderer.start(talk.opening)], [], []
    for text, stop, answer in talk.turns:
        texts.append(text.strip() if family.trims_actions else text)
        ended = [end_id(renderer, tokenizer.eos_token_id)] if stop is Stop.EOS else []
        actions.append(spell(tokenizer, texts[-1]) + ended)
        contexts.append(renderer.extend(answer, stop))
    return contexts, actions, texts


def expected_text(family: Family, kind: str, talk: Talk, texts: list[str]) -> str:
    given_messages = list(talk.opening)
    for text, (_, _, answer) in zip(texts, talk.turns, strict=True):
        given_messages += [assistant(text), *answer]
    return own_text(case(family.name, kind)[0], presented(family, given_messages))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@settings(max_examples=15, deadline=None)
@given(talk=talks())
def test_rendered_ids_decode_to_the_templates_text(family: Family, kind: str, talk: Talk) -> None:
    if family.name == "plain_words":  # without a token that ends a turn, a sampled eos stays in the text
        talk = Talk(talk.opening, [(text, Stop.STRING, answer) for text, _, answer in talk.turns])
    contexts, actions, texts = played(family, kind, talk)
    ids = contexts[0] + [token for pair in zip(actions, contexts[1:], strict=True) for part in pair for token in part]
    assert decode(case(family.name, kind)[0], ids) == expected_text(family, kind, talk, texts)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@settings(max_examples=8, deadline=None)
@given(talk=talks())
def test_mask_covers_exactly_the_sampled_tokens(family: Family, kind: str, talk: Talk) -> None:
    """Split by the mask, the template's text separates into actions, with sampled ends of turns, and the rest."""
    tokenizer, renderer = case(family.name, kind)
    contexts, actions, texts = played(family, kind, talk)
    end = decode(tokenizer, [end_id(renderer, tokenizer.eos_token_id)])
    for action, text, (_, stop, _) in zip(actions, texts, talk.turns, strict=True):
        assert renderer.decode(action) == text + (end if stop is Stop.EOS else "")
        assert renderer.parse(action, stop).message == renderer.parse(spell(tokenizer, text), Stop.LENGTH).message
    if family.name != "plain_words":
        rest = "".join(renderer.decode(context) for context in contexts)
        ended = sum(stop is Stop.EOS for _, stop, _ in talk.turns)
        blank = expected_text(family, kind, talk, ["" for _ in texts])
        assert len(rest) == len(blank) - ended * len(end)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@settings(max_examples=8, deadline=None)
@given(talk=talks())
def test_special_tokens_in_content_stay_text(family: Family, kind: str, talk: Talk) -> None:
    tokenizer, renderer = case(family.name, kind)
    special = special_ids(tokenizer)

    def specials_in(messages: list[Message], stop: Stop | None) -> list[int]:
        ids = renderer.start(messages) if stop is None else renderer.extend(messages, stop)
        return [token for token in ids if token in special]

    for messages, stop in [(talk.opening, None), *((answer, stop) for _, stop, answer in talk.turns)]:
        harmless = [Message(role=one.role, parts=text_parts("x" if one.content else "")) for one in messages]
        assert specials_in(messages, stop) == specials_in(harmless, stop)


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [("bpe", "never"), ("bpe", "always"), *(("unigram", scheme) for scheme in ("never", "first", "always", "prepend"))],
)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_start_matches_the_tokenizer_on_the_whole_text(
    family: Family, kind: str, scheme: str, data: st.DataObject
) -> None:
    """Scaffolding and content are encoded together, and inserted spaces are where the tokenizer puts them."""
    harmless = TEXTS.filter(lambda text: not any(token in text for token in (*SPECIALS, *ORDINARY)))
    opening = data.draw(talks(harmless)).opening
    tokenizer, renderer = case(family.name, kind, scheme)
    assert renderer.start(opening) == tokenizer.encode(
        own_text(tokenizer, presented(family, opening)), add_special_tokens=False
    )


@settings(max_examples=15, deadline=None)
@given(talk=talks(), other=talks())
def test_extend_is_independent_of_earlier_turns(talk: Talk, other: Talk) -> None:
    family = FAMILIES[0]
    alone = Renderer(case(family.name)[0])
    fresh = [alone.extend(answer, stop) for _, stop, answer in talk.turns]
    played(family, "bpe", other)
    contexts, _, _ = played(family, "bpe", talk)
    assert contexts[1:] == fresh
