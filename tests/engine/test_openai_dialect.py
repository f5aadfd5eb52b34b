"""The client against servers that refuse parameters and models that reason."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from endpoint_for_tests import ReasoningModel, Refusal, Server, completion, serving
from turnwise.core.messages import user
from turnwise.core.protocols import Sampling
from turnwise.core.trajectory import Stop
from turnwise.engine.openai.client import ChatClient
from turnwise.engine.openai.dialect import OUT_OF_TOKENS, REASONING_TOKENS, refused_parameter
from turnwise.engine.openai.endpoint import Endpoint, EndpointError, EndpointOutage
from turnwise.engine.openai.messages import Reply

EVERYTHING = Sampling(max_tokens=1000, temperature=0.0, top_p=0.9, top_k=5, stop=("</answer>",))
PLAIN = Sampling(max_tokens=64, temperature=1.0)
MODEL = "gpt-5-mini"


def replies(url: str, sampling: Sampling, number: int = 1, *, at_once: bool = False, retries: int = 0) -> list[Reply]:
    async def ask() -> list[Reply]:
        endpoint = Endpoint(url=url, model=MODEL, retries=retries, timeout_s=60)
        async with ChatClient(endpoint) as chat:
            requests = [chat.reply([user(f"number {each}")], (), sampling, seed=3) for each in range(number)]
            return await asyncio.gather(*requests) if at_once else [await each for each in requests]

    return asyncio.run(ask())


def keys(requests: Sequence[dict[str, Any]]) -> list[set[str]]:
    return [set(request) - {"model", "messages"} for request in requests]


def test_client_drops_what_a_reasoning_model_refuses(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(ReasoningModel())
    with serving(server) as url, caplog.at_level(logging.INFO):
        reply, _ = replies(url, EVERYTHING, 2)
    assert reply.retries == 0, "refusals are not retries"
    sent = keys(server.requests)
    assert sent[0] == {"max_tokens", "temperature", "top_p", "top_k", "stop", "seed"}
    assert sent[5:] == [{"max_completion_tokens", "seed"}] * 2, "the second reply repeats no refused request"
    notes = [record.getMessage() for record in caplog.records if record.name.startswith("turnwise")]
    assert len(notes) == 4, "one line per parameter"
    assert notes[0] == (
        f"{MODEL} refuses temperature 0.0: requests are sent without it, so it samples at its own temperature"
    )


def test_dialect_is_shared_by_clients_of_one_model_only() -> None:
    server, other = Server(ReasoningModel()), Server()
    with serving(server) as url, serving(other) as other_url:
        replies(url, EVERYTHING)
        before = len(server.requests)
        replies(url, EVERYTHING)
        replies(other_url, EVERYTHING)
    assert len(server.requests) == before + 1
    assert "temperature" in other.requests[0] and "max_tokens" in other.requests[0]


def test_client_adapts_concurrent_requests() -> None:
    server = Server(ReasoningModel())
    with serving(server) as url:
        answers = replies(url, EVERYTHING, 12, at_once=True)
    assert [reply.message.content[-2:] for reply in answers] == [f">{each + 1}"[-2:] for each in range(12)]
    assert server.requests[-1].keys() == {"model", "messages", "max_completion_tokens", "seed"}


def test_client_cuts_replies_at_stop_strings_that_a_model_refuses() -> None:
    with serving(Server(ReasoningModel())) as url:
        (reply,) = replies(url, EVERYTHING)
    assert (reply.message.content, reply.stop) == ("<think>easy</think><answer>1", Stop.EOS)


REFUSALS = {
    "top_k": '{"error": {"message": "Unrecognized request argument supplied: top_k", "param": null, "code": null}}',
    "seed": '{"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]}',
    "temperature": '{"error": {"message": "`temperature` is deprecated for this model.", "type": "x"}}',
    "top_p": """{"error": {"message": "Unsupported parameter: 'top_p' is not supported", "param": "model"}}""",
    "stop": "property 'stop' is unsupported",
}
OTHER_ERRORS = (
    '{"error": {"message": "Invalid \'temperature\': decimal above maximum value. Expected a value <= 2, but got 3.",'
    ' "param": "temperature", "code": "decimal_above_max_value"}}',
    '{"error": {"message": "Unknown role: \'robot\'", "param": "messages[0].role"}}',
    "temperature must be between 0 and 1",
    "",
    "[1, 2]",
)
REQUEST = {"model": "m", "temperature": 3, "top_p": 0.5, "top_k": 4, "stop": ["a"], "seed": 1, "max_tokens": 9}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_parameter_reads_errors_of_several_servers(name: str) -> None:
    assert refused_parameter(REQUEST, REFUSALS[name]) == name
    assert refused_parameter({"model": "m"}, REFUSALS[name]) is None


@pytest.mark.parametrize("text", OTHER_ERRORS)
def test_refused_parameter_ignores_other_errors(text: str) -> None:
    assert refused_parameter(REQUEST, text) is None


def test_client_reports_a_value_out_of_range() -> None:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        raise Refusal(400, "Invalid 'temperature': decimal above maximum value.", "temperature", "decimal_above_max")

    server = Server(answer)
    with serving(server) as url, pytest.raises(EndpointError, match=r"rejected the request \(400\) \(Invalid 'temp"):
        replies(url, EVERYTHING)
    assert len(server.requests) == 1


def test_client_raises_the_budget_of_a_model_that_only_reasons() -> None:
    server = Server(ReasoningModel(reasoning=700))
    with serving(server) as url:
        first, second = replies(url, PLAIN, 2)
    assert first.message.content and second.message.content
    budgets = [request["max_completion_tokens"] for request in server.requests[1:]]
    assert budgets == [64, 64 + REASONING_TOKENS, 64 + REASONING_TOKENS], "remembered for the second reply"


def test_client_keeps_the_empty_reply_if_no_larger_budget_is_allowed() -> None:
    server = Server(ReasoningModel(reasoning=700, most=500))
    with serving(server) as url:
        first, second = replies(url, PLAIN, 2)
    assert (first.message.content, first.stop, first.only_reasoned) == ("", Stop.LENGTH, True)
    assert second.only_reasoned


def test_client_asks_a_model_that_only_reasons_once_more() -> None:
    server = Server(ReasoningModel(reasoning=50_000))
    with serving(server) as url:
        (reply,) = replies(url, PLAIN)
    assert reply.only_reasoned
    assert len(server.requests) == 3, "max_tokens, then 64 tokens, then more"


def test_client_reads_openais_error_for_a_budget_used_up_by_reasoning() -> None:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["max_tokens"] < 1000:
            raise Refusal(400, f"Could not finish the message because {OUT_OF_TOKENS.decode()}. Please try again.")
        return completion("done")

    with serving(Server(answer)) as url:
        (reply,) = replies(url, PLAIN)
    assert reply.message.content == "done"


def test_client_sends_long_conversations_without_the_added_budget() -> None:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["messages"][-1]["content"] == "number 1" and request["max_tokens"] > 64:
            raise Refusal(400, "This model's maximum context length is 4096 tokens.", code="context_length_exceeded")
        return completion("done") if request["max_tokens"] > 64 else thinking

    thinking = completion("", finish="length")
    thinking["choices"][0]["message"]["reasoning_content"] = "hm"
    server = Server(answer)
    with serving(server) as url:
        first, second = replies(url, PLAIN, 2)
    assert (first.message.content, second.message.content) == ("done", "")
    assert [request["max_tokens"] - 64 for request in server.requests] == [0, REASONING_TOKENS, REASONING_TOKENS, 0]


def check(url: str, model: str = MODEL, key: str | None = None) -> None:
    async def send() -> None:
        async with ChatClient(Endpoint(url=url, model=model, key=key, retries=6)) as chat:
            await chat.check(EVERYTHING)

    asyncio.run(send())


def test_check_learns_the_dialect() -> None:
    model = ReasoningModel(lambda request: completion("OK"))
    server = Server(ReasoningModel(), check=model)
    with serving(server) as url:
        check(url)
        assert len(server.checks) == 6
        replies(url, EVERYTHING)
    assert len(server.requests) == 1


def test_check_reports_a_wrong_model_key_or_address() -> None:
    def no_key(request: dict[str, Any]) -> dict[str, Any]:
        raise Refusal(401, "Incorrect API key provided")

    no_model = pytest.raises(EndpointError, match=r"answered 404 \(The model `gpt-5-minni` does not exist")
    with serving(Server(check=ReasoningModel())) as url, no_model:
        check(url, "gpt-5-minni")
    with serving(Server(check=no_key)) as url, pytest.raises(EndpointOutage, match="refused the key"):
        check(url, key="sk-wrong")
    with pytest.raises(EndpointOutage, match=r"no answer from http://127.0.0.1:9/v1/chat/completions"):
        check("http://127.0.0.1:9/v1")
    no_chat = pytest.raises(EndpointError, match="does not answer as a chat endpoint: its answer has no message")
    with serving(Server(check=lambda request: {"hello": "world"})) as url, no_chat:
        check(url)


def test_check_passes_a_server_that_is_busy() -> None:
    def busy(request: dict[str, Any]) -> dict[str, Any]:
        raise Refusal(503, "overloaded")

    server = Server(check=busy)
    with serving(server) as url:
        check(url)
    assert len(server.checks) == 1
