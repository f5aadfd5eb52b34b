"""Parsing actions: text, spans and calls, from tokens that may end within a character."""

import json
import re
from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from render_cases import KINDS, case, spell, template_text
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from turnwise.core.messages import ToolCall
from turnwise.core.trajectory import Span, Stop
from turnwise.render.parse import parse_pieces, read_call, read_sections, tokens_outside_thinking
from turnwise.render.renderer import Renderer
from turnwise.tools.call_formats import strip_thinking

TAGS = ("<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>", "<call>", "</call>")
TEXTS = st.lists(st.one_of(st.sampled_from([*TAGS, "a", " ", "é", "🧊", "<", "ok"]), st.text(max_size=4)), max_size=12)


PLAIN = st.lists(st.sampled_from(["a", " ", "é", "🧊", "<", ">", "\n"]), max_size=8)


@st.composite
def cut_texts(draw: st.DrawFn, texts: st.SearchStrategy[list[str]] = TEXTS) -> list[bytes]:
    """A text, split into tokens anywhere, also within characters and tags."""
    data = "".join(draw(texts)).encode(errors="replace")
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=20)))
    return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def test_spans_cover_inner_text_without_tags() -> None:
    pieces = [b"<think>", b"go ", b"left", b"</think>", b"<answer>", b"Left", b"</answer>"]
    spans = parse_pieces(pieces, opens_think=False).spans
    assert spans == (Span(name="think", start=1, end=3), Span(name="answer", start=5, end=6))


def test_token_across_a_tag_border_is_inside_the_span() -> None:
    pieces = [b"<th", b"ink>go", b" left<", b"/think", b">"]
    assert parse_pieces(pieces, opens_think=False).spans == (Span(name="think", start=1, end=3),)


def test_split_characters_do_not_shift_spans() -> None:
    ice = "🧊".encode()
    pieces = [ice[:2], ice[2:], b"<answer>", ice[:1], ice[1:], b"</answer>"]
    parsed = parse_pieces(pieces, opens_think=False)
    assert parsed.spans == (Span(name="answer", start=3, end=5),)
    assert parsed.message.content == "🧊<answer>🧊</answer>"


def test_unclosed_block_extends_to_the_next_block_or_the_end() -> None:
    pieces = [b"<think>", b"a", b"<answer>", b"b"]
    spans = parse_pieces(pieces, opens_think=False).spans
    assert spans == (Span(name="think", start=1, end=2), Span(name="answer", start=3, end=4))


def test_tags_inside_a_closed_block_are_text() -> None:
    pieces = [b"<think>", b"I write ", b"<answer>", b"x", b"</answer>", b"</think>", b"<answer>", b"y", b"</answer>"]
    spans = parse_pieces(pieces, opens_think=False).spans
    assert spans == (Span(name="think", start=1, end=5), Span(name="answer", start=7, end=8))


def test_empty_blocks_have_no_span() -> None:
    assert parse_pieces([b"<answer>", b"</answer>"], opens_think=False).spans == ()


SECTIONS = (b"<observation>", b"o", b"</observation>", b"<reasoning>", b"r", b"</reasoning>", b"<prediction>", b"p")


def test_sections_of_the_thinking_have_spans() -> None:
    pieces = [b"<think>", *SECTIONS, b"</prediction>", b"</think>", b"<answer>", b"Left", b"</answer>"]
    assert parse_pieces(pieces, opens_think=False).spans == (
        Span(name="think", start=1, end=10),
        Span(name="answer", start=12, end=13),
        Span(name="observation", start=2, end=3),
        Span(name="reasoning", start=5, end=6),
        Span(name="prediction", start=8, end=9),
    )
    continued = parse_pieces(pieces[1:], opens_think=True).spans
    assert [(span.name, span.start) for span in continued][2:] == [
        ("observation", 1),
        ("reasoning", 4),
        ("prediction", 7),
    ]


@pytest.mark.parametrize(
    ("text", "sections"),
    [
        ("<think><prediction>p</think>", []),
        ("<think><observation>o<prediction>p</prediction></think>", [("prediction", "p")]),
        ("<think><observation>o</observation>", []),
        ("<think><observation>o</observation><answer>Up</answer>", []),
        ("<observation>o</observation></think>", [("observation", "o")]),
        ("<observation>o</observation><answer>Up</answer>", []),
        ("<think></think><observation>o</observation><answer>Up</answer>", []),
        ("<think><observation>o</observation></think><observation>x</observation></think>", [("observation", "o")]),
        ("<think>a</think><think><observation>o</observation></think>", [("observation", "o")]),
        ("<answer><think><observation>o</observation></think></answer>", []),
        ("<think><prediction><reasoning>r</prediction></think>", [("prediction", "<reasoning>r")]),
        ("<think><observation>a<observation>b</observation></think>", [("observation", "a<observation>b")]),
        ("<think><observation>a</observation></observation></think>", [("observation", "a")]),
        ("<think><observation></observation></think>", [("observation", "")]),
        ("<think><observation>\ud800</observation></think>", [("observation", "?")]),
    ],
)  # fmt: skip
def test_sections_are_closed_and_inside_closed_thinking(text: str, sections: list[tuple[str, str]]) -> None:
    assert read_sections(text) == sections


SECTION_TAGS = ("<observation>", "</observation>", "<prediction>", "</prediction>")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from((*TAGS[:4], *SECTION_TAGS, "a", "é")), max_size=14), st.booleans())
def test_masks_and_rewards_read_the_same_sections(pieces: list[str], opens_think: bool) -> None:
    spans = parse_pieces([piece.encode() for piece in pieces], opens_think).spans
    masked = [(span.name, "".join(pieces[span.start : span.end])) for span in spans]
    read = [(name, text) for name, text in read_sections("".join(pieces)) if text]
    assert [each for each in masked if each[0] in ("observation", "prediction")] == read


@settings(max_examples=50, deadline=None)
@given(before=cut_texts(PLAIN), inside=cut_texts(PLAIN))
def test_section_covers_exactly_the_tokens_of_its_text(before: list[bytes], inside: list[bytes]) -> None:
    pieces = [b"<think>", *before, b"<observation>", *inside, b"</observation>", b"</think>"]
    found = [span for span in parse_pieces(pieces, opens_think=False).spans if span.name == "observation"]
    text = b"".join(inside)
    assert [b"".join(pieces[span.start : span.end]) for span in found] == ([text] if text else [])


def test_action_continues_a_think_block_of_the_prompt() -> None:
    tokenizer, renderer = case("forced_think")
    ids = [*spell(tokenizer, "ab"), *tokenizer.encode("</think>"), *spell(tokenizer, "c")]
    parsed = renderer.parse(ids, Stop.LENGTH)
    assert parsed.spans == (Span(name="think", start=0, end=2),)
    assert parsed.message.content == "ab</think>c"


def inner_ranges(data: bytes) -> list[tuple[str, int, int]]:
    """The rule for blocks, written naively."""
    opening, at, found = re.compile(rb"<(think|answer|tool_call|call)>"), 0, []
    while tag := opening.search(data, at):
        at = data.find(b"</" + tag[1] + b">", tag.end())
        if at < 0:
            following = opening.search(data, tag.end())
            at = following.start() if following else len(data)
        found.append((tag[1].decode().removeprefix("tool_"), tag.end(), at))
    return found


@settings(max_examples=100, deadline=None)
@given(pieces=cut_texts())
def test_spans_cover_exactly_the_tokens_that_touch_inner_text(pieces: list[bytes]) -> None:
    ends = list(accumulate(map(len, pieces)))
    expected = []
    for name, begin, end in inner_ranges(b"".join(pieces)):
        touched = [
            place
            for place, piece in enumerate(pieces)
            if piece and ends[place] > begin and ends[place] - len(piece) < end
        ]
        if begin < end:
            expected.append(Span(name=name, start=touched[0], end=touched[-1] + 1))
    assert list(parse_pieces(pieces, opens_think=False).spans) == expected


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_ids_can_be_parsed(kind: str, data: st.DataObject) -> None:
    """Also ids that are not valid text, and ids beyond the vocabulary."""
    tokenizer, renderer = case("chatml", kind)
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) + 50), max_size=30))
    for stop in Stop:
        parsed = renderer.parse(ids, stop)
        assert all(0 <= span.start < span.end <= len(ids) for span in parsed.spans)
        assert parsed.message.role == "assistant"


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50, deadline=None)
@given(text=st.text(st.characters(exclude_categories=("Cs",), exclude_characters="▁"), max_size=20))
def test_parsed_content_is_the_exact_text(kind: str, text: str) -> None:
    tokenizer, renderer = case("chatml", kind)
    assert renderer.parse(spell(tokenizer, text), Stop.LENGTH).message.content == text


def test_parse_with_a_decoder_that_inserts_spaces() -> None:
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "go": 1, "left": 2, "<answer>": 3, "</answer>": 4}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>")
    tokenizer.chat_template = template_text("plain_words")
    parsed = Renderer(tokenizer).parse([1, 3, 1, 2, 4], Stop.LENGTH)
    assert parsed.message.content == "go <answer> go left </answer>"
    assert parsed.spans == (Span(name="answer", start=2, end=5),)  # a space is inner text too


def test_sampled_end_of_turn_is_not_content() -> None:
    tokenizer, renderer = case("chatml")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    ids = [*spell(tokenizer, "hi"), end]
    assert renderer.parse(ids, Stop.EOS).message.content == "hi"
    assert renderer.parse([end, *ids], Stop.EOS).message.content == "<|im_end|>hi"
    assert renderer.parse(ids, Stop.LENGTH).message.content == "hi<|im_end|>"
    assert renderer.parse([], Stop.EOS).message.content == ""


def test_call_arguments_keep_their_spacing() -> None:
    tokenizer, renderer = case("chatml")
    text = '<tool_call>\n{"name":  "look", "arguments":{ "x" :1,"y": "é\\n"} }\n</tool_call>'
    parsed = renderer.parse(spell(tokenizer, text), Stop.LENGTH)
    assert parsed.message.tool_calls == (ToolCall(name="look", arguments='{ "x" :1,"y": "é\\n"}', call_id="call00000"),)
    assert parsed.message.content == text
    assert [span.name for span in parsed.spans] == ["call"]


def test_calls_are_numbered_by_position() -> None:
    text = b'<tool_call>{"name": "a"}</tool_call><tool_call>oops</tool_call><tool_call>{"name": "c"}</tool_call>'
    calls = parse_pieces([text], opens_think=False).message.tool_calls
    assert [(call.name, call.arguments, call.call_id) for call in calls] == [
        ("a", "{}", "call00000"),
        ("c", "{}", "call00002"),
    ]


def test_unclosed_call_is_a_span_but_not_a_call() -> None:
    parsed = parse_pieces([b"<tool_call>", b'{"name": "a"}'], opens_think=False)
    assert parsed.message.tool_calls == ()
    assert parsed.spans == (Span(name="call", start=1, end=2),)


def test_call_inside_think_is_not_a_call() -> None:
    text = b'<think><tool_call>{"name": "a"}</tool_call></think>'
    assert parse_pieces([text], opens_think=False).message.tool_calls == ()


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", '"name"', "{}", '{"name": 1}', '{"name": ""}', '{"name": "a", "arguments": 3}'),
        *('{"name": "a"', '{"name": "a"} x', '{"name": "a",}', "{name: 'a'}", '{"arguments": {}}', '{1: "a"}'),
        *('{"name": "a", "arguments": {"x": }}', '{"name": "a" "arguments": {}}', '{"name": "a", "arguments": "['),
        '{"name": "a", "arguments": ' + "[" * 100_000,
        '{"name": "a", "arguments": {"x": ' + "9" * 10_000 + "}}",
    ],
    ids=range(20),
)
def test_malformed_call_is_not_a_call(text: str) -> None:
    assert read_call(text, "") is None


def test_call_arguments_may_be_a_string() -> None:
    call = read_call('{"name": "a", "arguments": "{\\"x\\": 1}"}', "")
    assert call is not None and call.arguments == '{"x": 1}'


@settings(max_examples=100, deadline=None)
@given(
    name=st.text(min_size=1, max_size=8),
    arguments=st.dictionaries(st.text(max_size=4), st.one_of(st.integers(), st.text(max_size=5), st.none())),
    indent=st.sampled_from([None, 0, 2]),
)
def test_read_call_keeps_arguments_as_written(name: str, arguments: dict[str, object], indent: int | None) -> None:
    raw = json.dumps(arguments, indent=indent)
    call = read_call(f' {{"name": {json.dumps(name)} , "arguments" : {raw} }}\n', "id")
    assert call == ToolCall(name=name, arguments=raw, call_id="id")


@pytest.mark.parametrize(
    ("tokens", "opens_think", "kept"),
    [
        ("a|<think>|b|</think>|\n\n| c|.", False, "a| c|."),
        ("<|think>|b</|think>|c", False, "c"),
        ("<think>|b|</think>| |<think>|c|</think>|d", False, "d"),
        ("b|</think>|\n|c", True, "</think>|\n|c"),
        ("b|</think>|c", False, "c"),
        ("b| c", False, "b| c"),
        ("b|<think>|c", False, None),  # not closed
        ("b| c", True, None),
        ("<think>|b|</think>c|d", False, None),  # the token of the tag has text too
    ],
)
def test_thinking_is_dropped_by_whole_tokens(tokens: str, opens_think: bool, kept: str | None) -> None:
    pieces = tokens.split("|")
    found = tokens_outside_thinking([piece.encode() for piece in pieces], opens_think)
    assert (None if found is None else "|".join(pieces[index] for index in found)) == kept


@pytest.mark.parametrize(
    ("unit", "kept"), [(b"<think>", None), (b"<think></think>", []), (b"</think>", range(1, 20_000))]
)
def test_thinking_is_dropped_in_linear_time(unit: bytes, kept: Sequence[int] | None) -> None:
    """Quadratic code takes minutes here, during which no other episode goes on."""
    found = tokens_outside_thinking([unit] * 20_000, opens_think=False)
    assert found == (None if kept is None else list(kept))


@settings(max_examples=200, deadline=None)
@given(pieces=cut_texts(), opens_think=st.booleans())
def test_dropped_thinking_leaves_the_text_outside(pieces: list[bytes], opens_think: bool) -> None:
    found = tokens_outside_thinking(pieces, opens_think)
    if found is not None:
        whole, kept = (b"".join(each).decode(errors="replace") for each in (pieces, [pieces[i] for i in found]))
        outside = strip_thinking(whole)
        assume(strip_thinking(outside) == outside)  # a second </think>, alone, would be read as one that closes
        assert "".join(strip_thinking(kept).split()) == "".join(outside.split())
