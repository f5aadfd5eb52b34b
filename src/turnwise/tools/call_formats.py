"""How models write calls, read from the text that was sampled; nothing is written anew, so the history keeps its ids.

hermes    <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>          also Qwen
llama     {"name": "add", "parameters": {"a": 1}}                                the whole answer, ; between several
mistral   [TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]
          [TOOL_CALLS]add[ARGS]{"a": 1}                                          newer ones, a tag for each call
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
from turnwise.render.calls import read_call

MAX_CALLS = 16
"""Of one turn: more are not run."""
OPEN, CLOSE = "<think>", "</think>"
HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
FENCED = re.compile(r"```(?:python|py)[ \t]*\r?\n(.*?)```", re.DOTALL)
PLAIN = re.compile(r"<call>(.*?)(?:</call>|\Z)", re.DOTALL)
LLAMA_TAG, MISTRAL_TAG = "<|python_tag|>", "[TOOL_CALLS]"
NAMED = re.compile(rf"{re.escape(MISTRAL_TAG)}\s*([^\s\[\]{{}}]+)\s*(?:\[CALL_ID\][^\[\]{{}}]*)?\[ARGS\]\s*")
"""Models from between the two forms give an id as well."""
ENDINGS = ("<|eom_id|>", "<|eot_id|>", "</s>")
"""Of a turn, as text; inside of arguments they are the agent's own words."""
NO_OBJECT = 'The "arguments" of a call must be an object.'
BETWEEN = re.compile(rf"(?:[ \t\r\n;,]|{'|'.join(map(re.escape, ENDINGS))})*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCalls:
    calls: tuple[ToolCall, ...] = ()
    problems: tuple[str, ...] = ()
    """Of attempts at a call that could not be read: one short line each, for the model."""

    @property
    def attempted(self) -> bool:
        return bool(self.calls or self.problems)


def parse_calls(text: str, style: str) -> ParsedCalls:
    """All calls outside of thoughts. It never raises."""
    calls, problems = list[ToolCall](), list[str]()
    for number, found in enumerate(CALL_FORMATS[style](strip_thinking(text))):
        if number == MAX_CALLS:
            problems.append(f"More than {MAX_CALLS} calls in one turn: the others did not run.")
            break
        if isinstance(found, str):
            problems.append(found)
        else:
            calls.append(ToolCall(name=found.name, arguments=found.arguments, call_id=f"call{number:05d}"))
    return ParsedCalls(calls=tuple(calls), problems=tuple(problems))


def strip_thinking(text: str) -> str:
    """What is said outside of `<think>...</think>`, wherever that stands; one that is never closed reaches to the end.

    A `</think>` before any `<think>` closes one that the chat template opened.
    """
    close = text.find(CLOSE)
    at = close + len(CLOSE) if close >= 0 and not 0 <= text.find(OPEN) < close else 0
    said = []
    while at >= 0:
        begin = text.find(OPEN, at)
        said.append(text[at : begin if begin >= 0 else None])
        close = text.find(CLOSE, begin) if begin >= 0 else -1
        at = close + len(CLOSE) if close >= 0 else -1
    return "".join(said)


def _call(text: str) -> ToolCall | str:
    """The call that a JSON object states, or what is wrong with it."""
    call = read_call(text, call_id="")
    if call is not None:
        return call
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"The call is no valid JSON: {str(error)[:80]}."
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return 'A call needs a "name" and "arguments".'
    return NO_OBJECT


def _hermes(text: str) -> Iterator[ToolCall | str]:
    yield from (_call(match[1].strip()) for match in HERMES.finditer(text))


def _llama(text: str) -> Iterator[ToolCall | str]:
    text = text.strip()
    tagged = text.startswith(LLAMA_TAG)
    text = text.removeprefix(LLAMA_TAG).strip()
    if not tagged and not text.startswith("{"):
        return
    yield from _in_a_row(text)


def _in_a_row(text: str) -> Iterator[ToolCall | str]:
    """JSON objects one after the other, with ; or a line's end between them."""
    decoder, at = json.JSONDecoder(), _behind_gap(text, 0)
    while at < len(text):
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            yield _call(text[at:])
            return
        yield _call(text[at:end])
        at = _behind_gap(text, end)


def _behind_gap(text: str, at: int) -> int:
    gap = BETWEEN.match(text, at)
    return gap.end() if gap else at


def _mistral(text: str) -> Iterator[ToolCall | str]:
    _, tag, rest = text.partition(MISTRAL_TAG)
    if not tag:
        return
    rest = _without_ending(rest)
    if rest.startswith("["):
        yield from _in_a_row(rest[1:].rstrip().removesuffix("]").strip())
    else:
        yield from _named(tag + rest)


def _named(text: str) -> Iterator[ToolCall | str]:
    """Calls that each begin with the tag, and have nothing else between them."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        head = NAMED.match(text, at)
        if head is None:
            yield f"Calls are a JSON list, or {MISTRAL_TAG}NAME[ARGS]{{...}} each."
            return
        try:
            value, end = decoder.raw_decode(text, head.end())
        except (ValueError, RecursionError) as error:
            yield f"The call is no valid JSON: {str(error)[:80]}."
            return
        yield ToolCall(name=head[1], arguments=text[head.end() : end]) if isinstance(value, dict) else NO_OBJECT
        at = _behind_gap(text, end)


def _without_ending(text: str) -> str:
    """Cut once: a text may end in thousands of them."""
    end = before = len(text)
    while True:
        while end and text[end - 1].isspace():
            end -= 1
        end -= next((len(ending) for ending in ENDINGS if text.endswith(ending, 0, end)), 0)
        if end == before:
            return text[:end].lstrip()
        before = end


def _python(text: str) -> Iterator[ToolCall | str]:
    for match in FENCED.finditer(text):
        yield ToolCall(name="python", arguments=json.dumps({"code": match[1]}))


def _plain(text: str) -> Iterator[ToolCall | str]:
    for match in PLAIN.finditer(text):
        name, _, arguments = match[1].strip().partition(" ")
        yield ToolCall(name=name, arguments=arguments.strip() or "{}") if name else "A call needs the name of a tool."


CALL_FORMATS: dict[str, Callable[[str], Iterator[ToolCall | str]]] = {
    "hermes": _hermes,
    "llama": _llama,
    "mistral": _mistral,
    "python": _python,
    "answer": _plain,
}


def format_call(name: str, arguments: Mapping[str, Any], style: str) -> str:
    """A call as `parse_calls` reads it, for scripts and demonstrations."""
    texts = [value for value in arguments.values() if isinstance(value, str)]
    written = json.dumps(dict(arguments), ensure_ascii=False)
    match style:
        case "hermes":
            return f'<tool_call>{{"name": "{name}", "arguments": {written}}}</tool_call>'
        case "llama":
            return f'{{"name": "{name}", "parameters": {written}}}'
        case "mistral":
            return f'{MISTRAL_TAG}[{{"name": "{name}", "arguments": {written}}}]'
        case "python":
            return f"```python\n{texts[0].rstrip()}\n```"
    return f"<call>{name} {texts[0] if len(arguments) == len(texts) == 1 else written}</call>"
