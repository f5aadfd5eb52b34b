"""Parsing tool calls in every format; no text makes it raise."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile_for_tests import CONTROL
from turnwise.tools.call_formats import CALL_FORMATS, MAX_CALLS, format_call, parse_calls

WRITTEN = {
    "hermes": '<tool_call>\n{"name": "add", "arguments": {"a":1,  "b": 2}}\n</tool_call>',
    "llama": '{"name": "add", "parameters": {"a":1,  "b": 2}}<|eom_id|>',
    "mistral": '[TOOL_CALLS] [{"name": "add", "arguments": {"a":1,  "b": 2}}]</s>',
    "answer": '<call>add {"a":1,  "b": 2}</call>',
}


NAMED = [
    '[TOOL_CALLS]add[ARGS]{"a":1,  "b": 2}',
    'Now. [TOOL_CALLS] add [ARGS] {"a":1,  "b": 2} </s>',
    '[TOOL_CALLS]add[CALL_ID]bC3dE5fG7[ARGS]{"a":1,  "b": 2}',
]
"""Format of newer Mistral models."""


@pytest.mark.parametrize("text", NAMED)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_mistral_named_calls_are_parsed_in_order(text: str, count: int) -> None:
    found = parse_calls(text + text.removeprefix("Now. ") * (count - 1), "mistral")
    assert [(call.name, call.arguments) for call in found.calls] == [("add", '{"a":1,  "b": 2}')] * count
    assert found.problems == ()
    assert not parse_calls(f"<think>{text}</think>So 3.", "mistral").attempted


@pytest.mark.parametrize("behind", ["Now I wait.", "[TOOL_CALLS]", "[TOOL_CALLS]add", '[{"name": "add"}]', "[ARGS]{}"])
def test_mistral_text_after_named_call_is_a_problem(behind: str) -> None:
    found = parse_calls(NAMED[0] + behind, "mistral")
    assert len(found.calls) == 1 and len(found.problems) == 1


@pytest.mark.parametrize("style", WRITTEN)
def test_parsed_arguments_keep_their_spelling(style: str) -> None:
    found = parse_calls(WRITTEN[style], style)
    assert [(call.name, call.arguments) for call in found.calls] == [("add", '{"a":1,  "b": 2}')]
    assert found.problems == ()


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("hermes", f"Both. {WRITTEN['hermes']} and\n{WRITTEN['hermes']}"),
        ("llama", '<|python_tag|>{"name": "add", "parameters": {}}; {"name": "add", "parameters": {"a": 1}}'),
        ("mistral", 'Now [TOOL_CALLS][{"name":"add","arguments":{}}, {"name":"add","arguments":{"a":1}}]'),
        ("python", "```python\nx = 1\n```\nthen\n```py\nprint(x)\n```"),
        ("answer", "<call>add</call> <call>add {}</call>"),
    ],
)
def test_calls_of_one_turn_are_numbered(style: str, text: str) -> None:
    found = parse_calls(text, style)
    assert [call.call_id for call in found.calls] == ["call00000", "call00001"]
    assert found.problems == ()


def test_fenced_block_is_a_python_call() -> None:
    (call,) = parse_calls('Let me see.\n```python\nprint("<a>")\n```\nDone', "python").calls
    assert call.name == "python" and json.loads(call.arguments) == {"code": 'print("<a>")\n'}


@pytest.mark.parametrize("style", CALL_FORMATS)
@pytest.mark.parametrize("text", ["", "The answer is 5.", "<think>maybe", "```\nno python\n```"])
def test_plain_text_is_not_a_call(style: str, text: str) -> None:
    assert not parse_calls(text, style).attempted


@pytest.mark.parametrize("style", [*WRITTEN])
def test_calls_in_thinking_are_ignored(style: str) -> None:
    assert not parse_calls(f"<think>{WRITTEN[style]}</think>So 3.", style).attempted
    assert not parse_calls(f"{WRITTEN[style]}</think>So 3.", style).attempted, "the prompt opened the thought"
    assert parse_calls(f"<think>well</think>{WRITTEN[style]}", style).calls


@pytest.mark.parametrize(
    ("style", "text", "said"),
    [
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1}</tool_call>', "not valid JSON"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', '"name"'),
        ("hermes", '<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "must be an object"),
        ("hermes", "<tool_call>" + "[" * 50_000, "not valid JSON"),
        ("llama", '{"name": "add", "parameters": ', "not valid JSON"),
        ("mistral", '[TOOL_CALLS]{"name"', "JSON list"),
        ("mistral", '[TOOL_CALLS][{"name": "add"', "not valid JSON"),
        ("mistral", "[TOOL_CALLS]add", "NAME[ARGS]{...}"),
        ("mistral", "[TOOL_CALLS]", "NAME[ARGS]{...}"),
        ("mistral", "[TOOL_CALLS]to add[ARGS]{}", "NAME[ARGS]{...}"),
        ("mistral", "[TOOL_CALLS]add[ARGS]", "not valid JSON"),
        ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1', "not valid JSON"),
        ("mistral", "[TOOL_CALLS]add[ARGS]" + '{"a":' * 50_000, "not valid JSON"),
        ("mistral", "[TOOL_CALLS]add[ARGS][1]", "must be an object"),
    ],
)
def test_unparsable_call_has_a_one_line_problem(style: str, text: str, said: str) -> None:
    found = parse_calls(text, style)
    assert not found.calls and len(found.problems) == 1
    assert said in found.problems[0] and len(found.problems[0]) < 120 and "\n" not in found.problems[0]


def test_number_of_calls_per_turn_is_limited() -> None:
    found = parse_calls(WRITTEN["hermes"] * 1000, "hermes")
    assert len(found.calls) == MAX_CALLS and len(found.problems) == 1


@given(text=st.text() | st.text(alphabet='{}[]":,<>/`call_tonph \n'), style=st.sampled_from(sorted(CALL_FORMATS)))
def test_parse_calls_accepts_any_text(text: str, style: str) -> None:
    parse_calls(text, style)
    parse_calls(f"<tool_call>{text}</tool_call>[TOOL_CALLS]{text}", style)
    parse_calls(f"[TOOL_CALLS]{text}[CALL_ID]{text}[ARGS]{text}[TOOL_CALLS]{text}", "mistral")


@given(
    words=st.lists(st.sampled_from([*CONTROL, "<b>", "a", "\\n", '"', "]", "}", "{"]), min_size=1, max_size=8),
    style=st.sampled_from(sorted(WRITTEN)),
)
def test_end_tokens_in_arguments_are_kept(words: list[str], style: str) -> None:
    """<s>struck out</s> is HTML to a tool, whatever it is to a model."""
    text = "a" + "".join(words)
    (call,) = parse_calls(format_call("add", {"a": text, "b": 1}, style), style).calls
    assert json.loads(call.arguments) == {"a": text, "b": 1}
    given = json.dumps({"a": text, "b": 1}, ensure_ascii=False)
    found = parse_calls(f"[TOOL_CALLS]add[ARGS]{given}" * 2, "mistral")
    assert [call.arguments for call in found.calls] == [given] * 2 and not found.problems


@pytest.mark.parametrize("ending", ["<|eom_id|>", "<|eot_id|>", "</s>", " <|eom_id|>\n<|eot_id|> ", ""])
def test_end_token_after_calls_is_ignored(ending: str) -> None:
    assert parse_calls(f'<|python_tag|>{{"name": "a"}}{ending}{{"name": "b"}}{ending}', "llama").problems == ()
    assert parse_calls(f"<|python_tag|>{ending}", "llama").problems == ()
    found = parse_calls(f'[TOOL_CALLS][{{"name": "a", "arguments": {{"x": "</s>"}}}}]{ending}', "mistral")
    assert [(call.name, call.arguments) for call in found.calls] == [("a", '{"x": "</s>"}')] and not found.problems


def test_many_end_tokens_are_stripped() -> None:
    ends = "</s> \n<|eom_id|>" * 5_000
    assert not parse_calls(f"[TOOL_CALLS]{ends}", "mistral").calls
    (call,) = parse_calls(f'[TOOL_CALLS] [{{"name": "add", "arguments": {{"a": "</s>"}}}}]{ends}', "mistral").calls
    assert (call.name, call.arguments) == ("add", '{"a": "</s>"}')
