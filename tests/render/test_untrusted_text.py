"""Special tokens, whole or in parts, in texts of environments and tools."""

from functools import cache
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from render_cases import FAMILIES, KINDS, ORDINARY, SPECIALS, Family, case, make_tokenizer
from transformers import PreTrainedTokenizerFast

from turnwise.core.messages import Message, ToolSpec, text_parts, user
from turnwise.core.trajectory import Stop
from turnwise.render.renderer import Renderer
from turnwise.rollout.context_modes import clip_middle
from turnwise.text.truncation import truncate_middle

TOKENS = (*SPECIALS, *ORDINARY)
BETWEEN = ("", "", " ", "\n", "\0", "\u200b", "\u0301", "<", ">", "|", '"', "\\", "a")


@st.composite
def halves(draw: st.DrawFn) -> str:
    """The start of one special token and the end of another; neither is a token by itself."""
    word, other = draw(st.sampled_from(TOKENS)), draw(st.sampled_from(TOKENS))
    return word[: draw(st.integers(1, len(word)))] + draw(st.sampled_from(BETWEEN)) + other[draw(st.integers(0, 3)) :]


PIECES = st.one_of(halves(), st.sampled_from(TOKENS), st.sampled_from(BETWEEN))
TEXTS = st.lists(PIECES, min_size=1, max_size=8).map("".join).filter(str.strip)


def added(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[int]:
    return [token for token in ids if token in tokenizer.added_tokens_decoder]


def check_same(tokenizer: PreTrainedTokenizerFast, renderer: Renderer, roles: list[str], texts: list[str]) -> None:
    """Special tokens are the same as with harmless texts: those of the template."""
    said, meek = (
        [
            Message(role=role, parts=text_parts(text), call_id="call00000")
            for role, text in zip(roles, each, strict=True)
        ]
        for each in (texts, ["x"] * len(texts))
    )
    for stop in (Stop.EOS, Stop.LENGTH):
        assert added(tokenizer, renderer.extend(said, stop)) == added(tokenizer, renderer.extend(meek, stop))
    assert added(tokenizer, renderer.start(said)) == added(tokenizer, renderer.start(meek))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@settings(max_examples=8)
@given(texts=st.lists(TEXTS, min_size=1, max_size=3), data=st.data())
def test_parts_of_special_tokens_never_become_a_token(
    family: Family, kind: str, texts: list[str], data: st.DataObject
) -> None:
    """Neither within a message, nor across two messages, nor next to the scaffolding."""
    roles = ["user", *data.draw(st.lists(st.sampled_from(["user", "tool"]), max_size=2))][: len(texts)]
    check_same(*case(family.name, kind), roles, texts[: len(roles)])


@settings(max_examples=25)
@given(
    kind=st.sampled_from(KINDS),
    text=st.lists(PIECES, min_size=4, max_size=30).map("".join),
    data=st.data(),
    cut=st.sampled_from([truncate_middle, clip_middle]),
)
def test_truncated_special_tokens_never_become_a_token(kind: str, text: str, data: st.DataObject, cut) -> None:
    tokenizer, renderer = case("chatml", kind)
    check_same(tokenizer, renderer, ["user"], [f".{cut(text, data.draw(st.integers(8, len(text) + 8)))}"])


@pytest.mark.parametrize("word", TOKENS)
@pytest.mark.parametrize("kind", KINDS)
def test_truncation_does_not_join_parts_of_a_special_token(kind: str, word: str) -> None:
    """Exactly the text between them is removed."""
    tokenizer, renderer = case("chatml", kind)
    for at in range(1, len(word)):
        head, tail = "h" * at + word[:at], word[at:] + "t" * (2 * at - len(word[at:]))
        whole = f"{head}{'x' * 100}{tail}"
        text = truncate_middle(whole, 2 * len(head))
        assert text.startswith(f"{head}\n") and "xx" not in text
        check_same(tokenizer, renderer, ["tool"], [text])


LETTERS = "<ab>"
Kind = Literal["special", "markup"]


@cache
def odd_case(words: tuple[str, ...], called: Kind) -> tuple[PreTrainedTokenizerFast, Renderer]:
    tokenizer = make_tokenizer("chatml")
    tokenizer.add_tokens(list(words), special_tokens=called == "special")
    return tokenizer, Renderer(tokenizer)


@pytest.mark.parametrize("called", ["special", "markup"])
@settings(max_examples=30)
@given(
    words=st.sampled_from([("<a><b", "<b>"), ("<a", "a>", "<a>"), ("<ab", "ab>a"), ("ab", "ba", "bab"), ("<<", ">>")]),
    text=st.text(LETTERS, min_size=1, max_size=16),
)
def test_overlapping_special_tokens_stay_text(called: Kind, words: tuple[str, ...], text: str) -> None:
    check_same(*odd_case(words, called), ["user"], [text])


@settings(max_examples=25)
@given(kind=st.sampled_from(KINDS), family=st.sampled_from(FAMILIES), name=TEXTS, text=TEXTS)
def test_special_tokens_in_a_tool_schema_stay_text(kind: str, family: Family, name: str, text: str) -> None:
    """In its name and description, and in names, descriptions, values and defaults of its arguments."""
    tokenizer, renderer = case(family.name, kind)

    def spec(name: str, text: str) -> ToolSpec:
        about = {"type": "string", "description": text, "enum": [text, name], "default": text}
        schema = {"type": "object", "properties": {text: about}, "required": [text], "$defs": {name: {text: text}}}
        return ToolSpec(name=name, description=text, parameters=schema)

    hostile, meek = (renderer.start([user("Go.")], [each]) for each in (spec(name, text), spec("n", "t")))
    assert added(tokenizer, hostile) == added(tokenizer, meek)
