"""Parse tool calls from sampled text, in the formats that models use. The text is only read, never rewritten, so the
history keeps its token ids.

hermes    <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>          also Qwen
llama     {"name": "add", "parameters": {"a": 1}}                                the whole answer, ; between calls
mistral   [TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]
          [TOOL_CALLS]add[ARGS]{"a": 1}                                          newer models, one tag per call
python    ```python                                                              a fenced block is the code to run
          print(1 + 1)
          ```
answer    <call>add {"a": 1}</call>                                              for small models
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.core.messages import ToolCall
from turnwise.render.parse import read_call

MAX_CALLS = 16
"""Calls run per turn; further ones are rejected."""
THINK_START, THINK_END = "<think>", "</think>"
_THOUGHTS = re.compile(rf"{THINK_START}(.*?)(?:{THINK_END}|\Z)", re.DOTALL)
HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
FENCED = re.compile(r"```(?:python|py)[ \t]*\r?\n(.*?)```", re.DOTALL)
PLAIN = re.compile(r"<call>(.*?)(?:</call>|\Z)", re.DOTALL)
LLAMA_TAG, MISTRAL_TAG = "<|python_tag|>", "[TOOL_CALLS]"
MISTRAL_NAME = re.compile(rf"{re.escape(MISTRAL_TAG)}\s*([^\s\[\]{{}}]+)\s*(?:\[CALL_ID\][^\[\]{{}}]*)?\[ARGS\]\s*")
"""Models between the two Mistral formats add a call id."""
END_TOKENS = ("<|eom_id|>", "<|eot_id|>", "</s>")
"""End-of-turn tokens as text. Inside arguments they are ordinary text."""
SEPARATORS = re.compile(rf"(?:[ \t\r\n;,]|{'|'.join(map(re.escape, END_TOKENS))})*")
ARGUMENTS_NOT_OBJECT = 'The "arguments" of a call must be an object.'


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCalls:
    calls: tuple[ToolCall, ...] = ()
    problems: tuple[str, ...] = ()
    """One line for the model per call that could not be parsed."""

    @property
    def attempted(self) -> bool:
        return bool(self.calls or self.problems)


def parse_calls(text: str, style: str) -> ParsedCalls:
    """Parse all calls outside of `<think>` blocks. Never raises."""
    calls, problems = list[ToolCall](), list[str]()
    for number, parsed in enumerate(CALL_FORMATS[style](strip_thinking(text))):
        if number == MAX_CALLS:
            problems.append(f"More than {MAX_CALLS} calls in one turn: the others did not run.")
            break
        if isinstance(parsed, str):
            problems.append(parsed)
        else:
            calls.append(ToolCall(name=parsed.name, arguments=parsed.arguments, call_id=f"call{number:05d}"))
    return ParsedCalls(calls=tuple(calls), problems=tuple(problems))


def strip_thinking(text: str) -> str:
    """Remove `<think>...</think>` blocks, as `split_thinking` finds them."""
    return split_thinking(text)[1]


def split_thinking(text: str) -> tuple[str, str]:
    """Return the contents of `<think>...</think>` blocks, joined by line breaks, and the text outside them.

    An unclosed block extends to the end. A `</think>` before any `<think>` closes a block that the template opened.
    """
    close = text.find(THINK_END)
    if close >= 0 and not 0 <= text.find(THINK_START) < close:
        text = f"{THINK_START}{text}"
    thoughts, rest, end = [], [], 0
    for block in _THOUGHTS.finditer(text):
        thoughts.append(block[1].strip())
        rest.append(text[end : block.start()])
        end = block.end()
    return "\n".join(thoughts).strip(), "".join([*rest, text[end:]])


def _parse_object(text: str) -> ToolCall | str:
    """Parse a call from a JSON object, or describe what is wrong with it."""
    call = read_call(text, call_id="")
    if call is not None:
        return call
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"The call is not valid JSON: {str(error)[:80]}."
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return 'A call needs a "name" and "arguments".'
    return ARGUMENTS_NOT_OBJECT


def _parse_hermes(text: str) -> Iterator[ToolCall | str]:
    yield from (_parse_object(match[1].strip()) for match in HERMES.finditer(text))


def _parse_llama(text: str) -> Iterator[ToolCall | str]:
    text = text.strip()
    tagged = text.startswith(LLAMA_TAG)
    text = text.removeprefix(LLAMA_TAG).strip()
    if not tagged and not text.startswith("{"):
        return
    yield from _parse_sequence(text)


def _parse_sequence(text: str) -> Iterator[ToolCall | str]:
    """Parse consecutive JSON objects, separated by ; , or white space."""
    decoder, start = json.JSONDecoder(), _skip_separators(text, 0)
    while start < len(text):
        try:
            _, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            yield _parse_object(text[start:])
            return
        yield _parse_object(text[start:end])
        start = _skip_separators(text, end)


def _skip_separators(text: str, start: int) -> int:
    match = SEPARATORS.match(text, start)
    return match.end() if match else start


def _parse_mistral(text: str) -> Iterator[ToolCall | str]:
    _, tag, rest = text.partition(MISTRAL_TAG)
    if not tag:
        return
    rest = _strip_end_tokens(rest)
    if rest.startswith("["):
        yield from _parse_sequence(rest[1:].rstrip().removesuffix("]").strip())
    else:
        yield from _parse_tagged_names(tag + rest)


def _parse_tagged_names(text: str) -> Iterator[ToolCall | str]:
    """Parse the newer Mistral format, where each call starts with the tag and its name."""
    decoder, start = json.JSONDecoder(), 0
    while start < len(text):
        head = MISTRAL_NAME.match(text, start)
        if head is None:
            yield f"Calls are a JSON list, or {MISTRAL_TAG}NAME[ARGS]{{...}} each."
            return
        try:
            value, end = decoder.raw_decode(text, head.end())
        except (ValueError, RecursionError) as error:
            yield f"The call is not valid JSON: {str(error)[:80]}."
            return
        is_object = isinstance(value, dict)
        yield ToolCall(name=head[1], arguments=text[head.end() : end]) if is_object else ARGUMENTS_NOT_OBJECT
        start = _skip_separators(text, end)


def _strip_end_tokens(text: str) -> str:
    """Remove end-of-turn tokens and white space at the end. Slices once, since there may be thousands of tokens."""
    end = before = len(text)
    while True:
        while end and text[end - 1].isspace():
            end -= 1
        end -= next((len(token) for token in END_TOKENS if text.endswith(token, 0, end)), 0)
        if end == before:
            return text[:end].lstrip()
        before = end


def _parse_python(text: str) -> Iterator[ToolCall | str]:
    for match in FENCED.finditer(text):
        yield ToolCall(name="python", arguments=json.dumps({"code": match[1]}))


def _parse_plain(text: str) -> Iterator[ToolCall | str]:
    for match in PLAIN.finditer(text):
        name, _, arguments = match[1].strip().partition(" ")
        yield ToolCall(name=name, arguments=arguments.strip() or "{}") if name else "A call needs the name of a tool."


CALL_FORMATS: dict[str, Callable[[str], Iterator[ToolCall | str]]] = {
    "hermes": _parse_hermes,
    "llama": _parse_llama,
    "mistral": _parse_mistral,
    "python": _parse_python,
    "answer": _parse_plain,
}


def remove_calls(answer: str, style: str) -> str:
    """Return the answer without the markup of its calls."""
    match style:
        case "hermes":
            return HERMES.sub(lambda match: "" if parse_calls(match[0], style).calls else match[0], answer)
        case "answer":
            return PLAIN.sub("", answer)
        case "python":
            return FENCED.sub("", answer)
        case "mistral":
            return answer.partition(MISTRAL_TAG)[0]
    return ""


def format_call(name: str, arguments: Mapping[str, Any], style: str) -> str:
    """Write a call that `parse_calls` parses, for prompts and demonstrations."""
    texts = [value for value in arguments.values() if isinstance(value, str)]
    encoded = json.dumps(dict(arguments), ensure_ascii=False)
    match style:
        case "hermes":
            return f'<tool_call>{{"name": "{name}", "arguments": {encoded}}}</tool_call>'
        case "llama":
            return f'{{"name": "{name}", "parameters": {encoded}}}'
        case "mistral":
            return f'{MISTRAL_TAG}[{{"name": "{name}", "arguments": {encoded}}}]'
        case "python":
            return f"```python\n{texts[0].rstrip()}\n```"
    return f"<call>{name} {texts[0] if len(arguments) == len(texts) == 1 else encoded}</call>"
