"""Long requests: refused by a named limit before any expensive work, or read and rendered off the event loop."""

import asyncio
import base64
import json
import re
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from test_gateway_server import CHAT, HI, converse

from contexts_for_tests import renderer_of
from episodes_for_tests import limits, says
from gateway_for_tests import RecordingPolicy, episode_key
from turnwise.core.messages import Message, ToolSpec, text_parts, user
from turnwise.core.trajectory import Stop
from turnwise.gateway import capture, request_body, server
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.render import codec, renderer
from turnwise.render.renderer import Renderer

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


def asks(**changes: Any) -> dict[str, Any]:
    return {**HI, "max_tokens": 8, **changes}


def function(number: int, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": f"f{number}", "parameters": parameters}}


def image(number: int) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(b'%d' % number).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


EMPTY = {"role": "user", "content": ""}
TEXT = {"type": "text", "text": ""}
BLOCK = {"name": "f", "input_schema": {"type": "object"}}
OVER_A_LIMIT: list[tuple[str, Callable[[], dict[str, Any]], int, str]] = [
    (CHAT, lambda: asks(messages=[EMPTY] * 60_000), 400, "messages: 60,000 items are more than the limit of 10,000"),
    (CHAT, lambda: asks(tools=[function(n) for n in range(20_000)]), 400, "tools: 20,000 items .* limit of 1,000"),
    (CHAT, lambda: asks(functions=[{"name": "f"}] * 1001), 400, "functions: 1,001 items are more"),
    (CHAT, lambda: asks(tools=[function(n) for n in range(200_000)]), 413, "more than 200,000 lists and objects"),
    (CHAT, lambda: asks(tools=[function(0, title="x" * 1_000_001)]), 400, "tools: 1,000,0.. characters are more"),
    (CHAT, lambda: asks(messages=[{"role": "user", "content": [TEXT] * 200_000}]), 413, "more than 200,000 lists"),
    (CHAT, lambda: asks(messages=[{"role": "user", "content": list(map(image, range(1001)))}]), 400, "1,001 images"),
    (CHAT, lambda: asks(stop=["x"] * 65), 400, "stop: 65 stop strings are more than the limit of 64"),
    (CHAT, lambda: asks(stop="x" * 1001), 400, "stop: 1,001 characters in a stop string are more"),
    (
        CHAT,
        lambda: asks(messages=[{"role": "tool", "tool_call_id": "x" * 1001, "content": ""}, HI["messages"][0]]),
        400,
        "1,001 characters in the id of a call",
    ),
    (CHAT, lambda: asks(metadata=[0] * 2_000_001), 413, "commas and brackets, more than 2,000,000"),
    (RESPONSES, lambda: asks(input=[EMPTY] * 20_001), 400, "input: 20,001 items are more"),
    (RESPONSES, lambda: asks(input=[EMPTY] * 10_001), 400, "messages: 10,001 messages are more"),
    (
        RESPONSES,
        lambda: asks(input="x", tools=[{"type": "function", "name": f"f{n}"} for n in range(1001)]),
        400,
        "tools: 1,001 items are more",
    ),
    (MESSAGES, lambda: asks(messages=[EMPTY] * 60_000), 400, "messages: 60,000 items are more"),
    (MESSAGES, lambda: asks(tools=[BLOCK] * 20_000), 400, "tools: 20,000 items are more"),
    (MESSAGES, lambda: asks(stop_sequences=["x"] * 65), 400, "stop: 65 stop strings are more"),
]


@pytest.mark.parametrize(("path", "make_body", "status", "message"), OVER_A_LIMIT)
def test_limits_refuse_requests_before_they_are_rendered(
    path: str, make_body: Callable[[], Any], status: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps(make_body()).encode()
    monkeypatch.setattr(Renderer, "start", None)
    monkeypatch.setattr(capture, "trace_conversation", None)

    async def talk(gateway, episode, http):
        return await http.post(path, content=body)

    answer, turns = converse(talk)
    error = answer.json()["error"]
    assert answer.status_code == status, error
    assert not turns
    assert error["type"] in ("invalid_request_error", "request_too_large")
    assert re.search(message, error["message"]), error["message"]


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/responses/input_tokens"])
def test_limits_hold_for_token_counts(path: str) -> None:
    async def talk(gateway, episode, http):
        many = await http.post(path, json=asks(messages=[EMPTY] * 10_001, input=[EMPTY] * 10_001))
        text = "word " * 400_000
        long = await http.post(path, json=asks(messages=[{"role": "user", "content": text}], input=text))
        return [(answer.status_code, answer.json()["error"]["message"]) for answer in (many, long)]

    [many, long], _ = converse(talk)
    assert many[0] == long[0] == 400
    assert "10,001" in many[1]
    assert "maximum context length" in long[1]


@pytest.mark.parametrize(
    "changes",
    [
        {
            "tools": [
                function(0, title="x"),
                {"type": "function", "function": {"name": "f", "description": "y " * 50_000}},
            ]
        },
        {
            "messages": [
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "z " * 50_000}}],
                },
                {"role": "user", "content": "Go"},
            ]
        },
    ],
)
def test_limits_count_tools_and_calls_as_context(changes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Renderer, "start", None)

    async def talk(gateway, episode, http):
        return (await http.post(CHAT, json=asks(**changes))).json()["error"]["code"], episode.overflowed

    assert converse(talk)[0] == ("context_length_exceeded", True)


def test_limits_nesting_is_bounded() -> None:
    async def talk(gateway, episode, http):
        nested: Any = "x"
        codes = []
        for depth in range(1, request_body.MAX_DEPTH + 1):
            nested = [nested]
            if depth >= request_body.MAX_DEPTH - 1:
                codes.append((await http.post(CHAT, json=asks(metadata=nested))).status_code)
        return codes

    assert converse(talk)[0] == [200, 400]


def test_limits_received_bodies_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "MAX_BUFFERED", 1000)

    async def talk(gateway, episode, http):
        return [(await http.post(CHAT, json=asks())).status_code for _ in range(20)]

    assert converse(talk)[0] == [200] * 20


class Gate:
    """Holds calls of a function for long requests until it is opened; fails if they hold the event loop."""

    def __init__(self, function: Callable[..., Any], is_long: Callable[..., bool]) -> None:
        self._function, self._is_long = function, is_long
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if self._is_long(*arguments):
            assert threading.current_thread() is not threading.main_thread(), "it runs in the event loop"
            self.entered.set()
            assert self.opened.wait(60), "nothing else ran meanwhile"
        return self._function(*arguments, **options)


STAGES: list[tuple[Any, str, Callable[..., bool]]] = [
    (server, "read_chat", lambda path, body, *rest: len(body) > 2**15),
    (Renderer, "can_fit", lambda tokens, messages, *rest: len(messages) > 100),
    (capture, "trace_conversation", lambda messages, tools: len(messages) > 100),
    (Renderer, "start", lambda tokens, messages, *rest: len(messages) > 100),
]


@pytest.mark.parametrize(("owner", "name", "is_long"), STAGES, ids=[name for _, name, _ in STAGES])
def test_long_request_leaves_the_event_loop_to_short_ones(
    owner: Any, name: str, is_long: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [{"role": "user", "content": f"message {number} of {'many ' * 5}"} for number in range(1000)]
    expected = renderer_of("tiny").start([user(row["content"]) for row in many])
    gate = Gate(getattr(owner, name), is_long)
    monkeypatch.setattr(owner, name, lambda *arguments, **options: gate(*arguments, **options))

    async def talk(gateway, episode, http):
        other = await gateway.open_episode(episode_key(member=1))
        long = asyncio.create_task(http.post(CHAT, json=asks(messages=many)))
        while not gate.entered.is_set() and not long.done():
            await asyncio.sleep(0.01)
        short = await http.post(CHAT, json=HI, headers={"Authorization": f"Bearer {other.bearer}"})
        gate.opened.set()
        return short.status_code, (await long).status_code

    policy = RecordingPolicy(says("hello"))
    assert converse(talk, policy, limits=limits(max_tokens=100_000))[0] == (200, 200)
    long_context = max(policy.samples, key=lambda sample: len(sample[0]))[0]
    assert list(long_context) == expected


def memory_after(work: Callable[[], Any]) -> int:
    """Return the bytes that remain allocated."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def distinct_tools(count: int) -> Iterator[ToolSpec]:
    for number in range(count):
        words = " ".join(f"word{number}x{index}" for index in range(600))
        yield ToolSpec(name="f", description=words, parameters={"type": "object", "properties": {}})


def test_caches_forget_long_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer, "CACHED_STARTS_BYTES", 2**19)
    monkeypatch.setattr(codec, "CACHE_BYTES", 2**19)
    tokens = Renderer(tokenizer_with_tools())
    assert memory_after(lambda: [tokens.start([user("x")], [tool]) for tool in distinct_tools(60)]) < 3 * 2**20


def test_caches_forget_long_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "CACHE_BYTES", 2**19)
    tokens = Renderer(tiny_tokenizer())
    texts = [f"{number} " + "some words " * 500 for number in range(100)]
    assert memory_after(lambda: [tokens.start([user(text)]) for text in texts]) < 3 * 2**20


def test_caches_do_not_keep_long_conversations() -> None:
    tokens = Renderer(tiny_tokenizer())
    messages = [Message(role="user", parts=text_parts("x")) for _ in range(65)]
    tokens.extend(messages, Stop.EOS)
    tokens.start(messages)
    assert (tokens._extensions.cache_info().currsize, len(tokens._starts)) == (0, 0)
    tokens.extend(messages[1:], Stop.EOS)
    tokens.start(messages[1:])
    assert (tokens._extensions.cache_info().currsize, len(tokens._starts)) == (1, 1)


def tokenizer_with_tools() -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ tools | tojson }}" + tokenizer.chat_template
    return tokenizer
