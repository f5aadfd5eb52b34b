"""The client against a real server that fails on order."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from endpoint_for_tests import Server, completion, serving
from turnwise.core.errors import InfrastructureFailure, Outage, UserError
from turnwise.core.messages import (
    ImagePart,
    Message,
    ToolCall,
    ToolSpec,
    assistant,
    system,
    text_parts,
    user,
)
from turnwise.core.protocols import Sampling
from turnwise.core.trajectory import Stop
from turnwise.engine.openai import client as client_module
from turnwise.engine.openai.client import ChatClient
from turnwise.engine.openai.endpoint import ContextLengthError, Endpoint, EndpointError, EndpointOutage
from turnwise.engine.openai.messages import Reply

HELLO = (system("rules"), user("number 7"))
SAMPLING = Sampling(max_tokens=9, temperature=0.5)


class Waits:
    """Instead of sleeping: notes how long it would have been."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def talk(
    url: str,
    *,
    waits: Waits | None = None,
    sampling: Sampling = SAMPLING,
    tools: Sequence[ToolSpec] = (),
    messages: Sequence[Message] = HELLO,
    **settings: Any,
) -> Reply:
    async def ask() -> Reply:
        endpoint = replace(Endpoint(url=url, model="m", timeout_s=120, retries=4), **settings)
        async with ChatClient(endpoint, sleep=waits or Waits(), jitter=lambda: 0.5) as chat:
            return await chat.reply(messages, tools, sampling, seed=11)

    return asyncio.run(ask())


def test_client_sends_a_request_and_reads_the_reply() -> None:
    server = Server()
    with serving(server) as url:
        reply = talk(url)
    assert (reply.message.role, reply.message.content) == ("assistant", "<think>easy</think><answer>8</answer>")
    assert (reply.stop, reply.prompt_tokens, reply.sampled_tokens, reply.retries) == (Stop.EOS, 20, 5, 0)
    assert server.requests == [
        {
            "model": "m",
            "messages": [{"role": "system", "content": "rules"}, {"role": "user", "content": "number 7"}],
            "temperature": 0.5,
            "max_tokens": 9,
            "seed": 11,
        }
    ]
    assert server.keys == [None]


def test_client_sends_all_options_and_reads_tool_calls() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call, {"function": {"name": 3}}]}
    server = Server(answer=lambda request: {"choices": [{"message": message, "finish_reason": "length"}]})
    tool = ToolSpec(name="look", description="Looks.", parameters={"type": "object"})
    asked = ToolCall(name="look", arguments="{}", call_id="c0")
    earlier = Message(role="assistant", parts=text_parts(""), tool_calls=(asked,))
    answered = Message(role="tool", parts=text_parts("a door"), call_id="c0")
    shown = Message(role="user", parts=(*text_parts("number 7"), ImagePart(data=b"\x89PNG...")))
    sampling = Sampling(max_tokens=9, temperature=0.0, top_p=0.9, top_k=5, stop=("</answer>",))
    with serving(server) as url:
        reply = talk(url, sampling=sampling, tools=[tool], messages=(user("number 7"), earlier, answered, shown))
    assert reply.message.tool_calls == (ToolCall(name="look", arguments='{"at": 1}', call_id="c1"),)
    assert (reply.message.content, reply.stop, reply.sampled_tokens) == ("", Stop.LENGTH, None)
    sent = server.requests[0]
    assert (sent["temperature"], sent["top_p"], sent["top_k"], sent["stop"]) == (0.0, 0.9, 5, ["</answer>"])
    assert sent["tools"][0]["function"] == {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}
    assert sent["messages"][1]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}
    assert sent["messages"][2] == {"role": "tool", "content": "a door", "tool_call_id": "c0"}
    assert sent["messages"][3]["content"][1]["image_url"]["url"].startswith("data:image/png;base64,")


TRANSIENT = ["429", "500", "502", "503", "504", "529", "408", "cut", "cut body", "late", "garbage", "empty"]


@pytest.mark.parametrize("fault", TRANSIENT)
def test_client_retries_transient_failures(fault: str) -> None:
    server, waits = Server(faults=lambda said: [fault, fault]), Waits()
    with serving(server) as url:
        reply = talk(url, waits=waits, timeout_s=1.0 if fault == "late" else 120.0)
    assert (reply.message.content, reply.retries) == ("<think>easy</think><answer>8</answer>", 2)
    assert len(server.requests) == 3
    assert waits.seconds == pytest.approx([0.5 * 0.75, 1.0 * 0.75]), "twice as long each time, spread by jitter"


def test_client_raises_infrastructure_failure_after_retries() -> None:
    server, waits = Server(faults=lambda said: ["503"] * 9), Waits()
    with serving(server) as url, pytest.raises(InfrastructureFailure, match=r"answered 503 \(not now\), 5 times"):
        talk(url, waits=waits)
    assert len(server.requests) == 5
    assert waits.seconds == pytest.approx([0.375, 0.75, 1.5, 3.0])
    long = Waits()
    with serving(Server(faults=lambda said: ["503"] * 9)) as url:
        talk(url, waits=long, retries=9)
    assert max(long.seconds) <= 30, "the wait has a longest"
    with serving(Server(faults=lambda said: ["503"])) as url, pytest.raises(InfrastructureFailure, match=r", once$"):
        talk(url, retries=0)


@pytest.mark.parametrize("fault", ["429 retry-after=7", "503 retry-after=7"])
def test_client_respects_retry_after(fault: str) -> None:
    waits = Waits()
    with serving(Server(faults=lambda said: [fault])) as url:
        talk(url, waits=waits)
    assert waits.seconds[0] >= 7
    assert sum(waits.seconds) < 16


def test_client_applies_retry_after_to_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    server, waits = Server(faults=lambda said: ["429 retry-after=50"] if said == [1] else []), Waits()

    async def both(url: str) -> None:
        async with ChatClient(Endpoint(url=url, model="m"), sleep=waits, jitter=lambda: 0.0) as chat:
            await chat.reply([user("number 1")], (), SAMPLING, 0)
            waits.seconds.clear()
            await chat.reply([user("number 2")], (), SAMPLING, 0)

    with serving(server) as url:
        asyncio.run(both(url))
    assert waits.seconds == [pytest.approx(50, abs=5)]


LASTING = {
    "401": ("unauthorized", r"^127.0.0.1 requires a key \(401\) \(not now\)$"),
    "403": ("unauthorized", r"^127.0.0.1 requires a key \(403\)"),
    "404": ("not_found", r"^127.0.0.1 answered 404 \(not now\)$"),
    "400": ("rejected", r"^127.0.0.1 rejected the request \(400\) \(not now\)$"),
    "422": ("rejected", r"rejected the request \(422\)"),
    "501": ("rejected", r"rejected the request \(501\)"),
    "307 location=http://other/v1": ("redirect", r"answered 307, a redirect to http://other/v1$"),
    "429 retry-after=7200": ("wait", r"answered 429 \(not now\) and asks to wait 7200 s$"),
    '429 body={"error": {"code": "insufficient_quota"}}': ("quota", r"^the quota at 127.0.0.1 is used up$"),
}


@pytest.mark.parametrize("fault", LASTING)
def test_client_raises_lasting_errors_at_once(fault: str) -> None:
    server, waits = Server(faults=lambda said: [fault] * 9), Waits()
    reason, message = LASTING[fault]
    with serving(server) as url, pytest.raises(EndpointError, match=message) as caught:
        talk(url, waits=waits)
    assert "\n" not in str(caught.value)
    assert (caught.value.reason, caught.value.status) == (reason, int(fault[:3]))
    assert caught.value.endpoint.url == url
    assert isinstance(caught.value, Outage) == (reason in ("unauthorized", "wait", "quota"))
    assert (len(server.requests), waits.seconds) == (1, [])


def test_endpoint_error_with_advice_keeps_its_class() -> None:
    endpoint = Endpoint(url="http://h/v1", model="m")
    lasting = EndpointError("h answered 404", endpoint=endpoint, reason="not_found", status=404)
    outage = EndpointOutage("no answer", endpoint=endpoint, reason="unreachable")
    assert str(lasting.with_advice("check --model")) == "h answered 404: check --model"
    assert str(outage.with_advice("start it", prefix="the judge m: ")) == "the judge m: no answer: start it"
    assert type(lasting.with_advice("")) is UserError and type(outage.with_advice("")) is Outage


def test_client_reports_an_unreachable_endpoint_after_retries() -> None:
    with serving(Server()) as url:
        pass
    waits = Waits()
    with pytest.raises(EndpointOutage, match=r"^no answer from http://127.0.0.1:\d+/v1/chat/completions \(") as caught:
        talk(url, waits=waits)
    assert caught.value.reason == "unreachable"
    assert len(waits.seconds) == 4


def test_client_sends_the_key_and_never_shows_it() -> None:
    key = "sk-very-secret"
    echo = f'401 body={{"error": {{"message": "wrong key {key}"}}}}'
    server = Server(faults=lambda said: [echo])
    with (
        serving(server) as url,
        pytest.raises(UserError, match=r"refused the key \(401\) \(wrong key \*\*\*\)") as error,
    ):
        talk(url, key=key)
    assert server.keys == [f"Bearer {key}"]
    assert key not in str(error.value)
    assert key not in repr(Endpoint(url=url, model="m", key=key))


@pytest.mark.parametrize("body", ["context_length_exceeded", "This model's maximum context length is 10 tokens"])
def test_client_raises_context_length_error(body: str) -> None:
    with serving(Server(faults=lambda said: [f"400 body={body}"])) as url, pytest.raises(ContextLengthError):
        talk(url)


def test_client_adapts_to_max_completion_tokens() -> None:
    fault = "400 body=Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    server, waits = Server(faults=lambda said: [fault]), Waits()
    with serving(server) as url:
        talk(url, waits=waits)
    assert [("max_tokens" in sent, sent.get("max_completion_tokens")) for sent in server.requests] == [
        (True, None),
        (False, 9),
    ]
    assert sum(waits.seconds) == 0


def test_client_adapts_to_endpoints_without_seed() -> None:
    server = Server(faults=lambda said: ["422 body=extra fields not permitted: seed"])
    with serving(server) as url:
        talk(url)
    assert ["seed" in sent for sent in server.requests] == [True, False]


def test_client_limits_the_length_of_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_BYTES", 1000)
    server = Server(answer=lambda request: completion("x" * 5000))
    with serving(server) as url, pytest.raises(InfrastructureFailure, match="longer than 1000 bytes"):
        talk(url, retries=1)


def test_client_handles_unpaired_surrogates() -> None:
    server = Server(answer=lambda request: completion("half \ud83d"))
    with serving(server) as url:
        reply = talk(url, messages=(user("number 7"), assistant("half \ud83d"), user("number 8")))
    assert reply.message.content == "half ?"
    assert json.dumps(server.requests[0]["messages"][1]["content"]) == '"half \\ud83d"'
