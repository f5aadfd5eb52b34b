"""Judges behind an endpoint: exact scores, kinds of failures, nothing paid for twice, and a budget that holds."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoint_for_tests import ReasoningModel, Refusal, Server, completion
from endpoint_for_tests import serving as serving_model
from judges_for_tests import JudgeServer, client_of, fenced, serving, settings_for
from turnwise.core.errors import InfrastructureFailure, Outage, UserError
from turnwise.core.messages import ImagePart, Message, assistant, system, user
from turnwise.rewards.judge.client import IMAGE_TOKENS, JudgeClient, estimate_tokens, request_key
from turnwise.rewards.judge.judges import AnswerJudge, AnswerJudgeSettings
from turnwise.rewards.judge.prompts import UnreadableVerdict, absolute_prompt, read_score
from turnwise.rewards.judge.registry import JudgeRegistry
from turnwise.rewards.judge.settings import JudgeSettings
from turnwise.rewards.rubric import Submission

SCORES = {"Paris": 10, "Lyon": 2.5, "Rome": 0}


def by_city(messages: list[dict[str, str]]) -> str:
    inside, _ = fenced(messages)
    (said,) = [text for kind, text in inside if kind == "agent"]
    return json.dumps({"reason": "so it is", "score": SCORES[said.split()[0]]})


async def score(client: JudgeClient, settings: JudgeSettings, said: str) -> float:
    messages = absolute_prompt((("agent", said),), "The capital?", "", settings)
    return await client.ask(messages, lambda text: read_score(text, settings.scale))


def scores(server: JudgeServer, folder: Path, *said: str, slept: list[float] | None = None, **options: Any) -> Any:
    """Return the scores of these answers, requested at once, and their client."""

    async def run() -> list[float]:
        return await asyncio.gather(*(score(client, settings, each) for each in said))

    with serving(server) as url:
        settings = settings_for(url, folder, **options)
        client = client_of(settings, slept)
        return asyncio.run(run()), client.counts


def test_client_scales_scores_to_0_and_1(tmp_path: Path) -> None:
    found, counts = scores(JudgeServer(by_city), tmp_path, "Paris", "Lyon", "Rome")
    assert found == [1.0, 0.25, 0.0]
    assert (counts.calls, counts.tokens, counts.cached, counts.unreadable) == (3, 300, 0, 0)


def test_client_uses_the_scale_of_the_settings(tmp_path: Path) -> None:
    server = JudgeServer(lambda messages: '{"score": -1}')
    assert scores(server, tmp_path, "Paris", scale=(-3, 1))[0] == [0.5]
    assert "-3 (not at all) to 1 (fully)" in server.requests[0]["messages"][0]["content"]


def test_answer_judge_shows_question_reference_and_episode(tmp_path: Path) -> None:
    server = JudgeServer(lambda messages: '{"score": 4}')
    submission = Submission(
        question="The capital?",
        answer="Paris",
        row={"gold": ["Paris", "paris"]},
        messages=(system("Be good."), user("The capital?"), assistant("I look."), assistant("Paris")),
    )
    with serving(server) as url:
        common = {"model": "m", "rubric": "is right", "endpoint": url, "cache": str(tmp_path)}
        judges, options = JudgeRegistry(), ({"against": "gold"}, {"shows": "episode"})
        settings = [AnswerJudgeSettings(**common, **each) for each in options]
        parts = [AnswerJudge(settings=each, client=judges.client(each)) for each in settings]
        assert [asyncio.run(part(submission)) for part in parts] == [0.4, 0.4]
        assert judges.metrics()["judge/calls"] == 2 and judges.client(settings[0]).counts.calls == 1
    first, second = (fenced(request["messages"]) for request in server.requests)
    assert first[0] == [("question", "The capital?"), ("reference", "Paris\nor: paris"), ("agent", "Paris")]
    assert [kind for kind, _ in second[0]] == ["question", "environment", "environment", "agent", "agent"]
    assert "The rubric: is right" in first[1]
    assert server.requests[0]["temperature"] == 0


def test_answer_judge_rejects_modes_that_compare_members() -> None:
    with pytest.raises(ValueError, match=r"put it into \[reward\] judges"):
        AnswerJudgeSettings(model="m", rubric="r", mode="relative")


@pytest.mark.parametrize(
    ("fault", "least_wait"), [("429 7", 6.9), ("429", 0.25), ("500", 0.25), ("503", 0.25), ("html", 0.25)]
)
def test_client_retries_transient_failures(fault: str, least_wait: float, tmp_path: Path) -> None:
    slept: list[float] = []
    server = JudgeServer(by_city, faults=[fault, fault])
    found, counts = scores(server, tmp_path, "Lyon", slept=slept)
    assert found == [0.25]
    assert (counts.calls, counts.retried) == (3, 2)
    assert min(slept) >= least_wait and len(slept) >= 2


def test_client_retries_dropped_connections(tmp_path: Path) -> None:
    found, counts = scores(JudgeServer(by_city, faults=["drop", "drop"]), tmp_path, "Lyon")
    assert found == [0.25] and counts.retried == 2


def test_client_retries_time_outs_and_counts_their_full_cost(tmp_path: Path) -> None:
    found, counts = scores(JudgeServer(by_city, faults=["late"]), tmp_path, "Lyon", timeout_s=1.0)
    assert found == [0.25]
    assert counts.tokens > 100 + 512, "what it cost is not known, so it counts as all that it could cost"


def test_client_waits_longer_after_each_failure(tmp_path: Path) -> None:
    slept: list[float] = []
    scores(JudgeServer(by_city, faults=["500"] * 4), tmp_path, "Lyon", slept=slept)
    assert slept[0] <= 0.5 < slept[1] * 1.01 and slept[3] >= 2.0


@pytest.mark.parametrize("fault", ["500", "429 1"])
def test_client_raises_when_all_retries_fail(fault: str, tmp_path: Path) -> None:
    expected = (
        rf"^the judge m at http://127\.0\.0\.1:\d+/v1/chat/completions: 127.0.0.1 answered {fault[:3]} .*, 3 times$"
    )
    with pytest.raises(InfrastructureFailure, match=expected):
        scores(JudgeServer(by_city, faults=[fault] * 3), tmp_path, "Lyon", retries=2)


def test_client_error_quotes_a_page_that_is_not_json(tmp_path: Path) -> None:
    expected = r"^the judge m at http://.*/v1/chat/completions: its answer is not JSON \(<html>busy</html>\), 2 times$"
    with pytest.raises(InfrastructureFailure, match=expected):
        scores(JudgeServer(by_city, faults=["html"] * 2), tmp_path, "Lyon", retries=1)


def test_judge_with_default_settings_works_with_a_reasoning_model(tmp_path: Path) -> None:
    model = ReasoningModel(lambda request: completion('{"score": 10}'), reasoning=2000)
    server = Server(model, check=model)
    with serving_model(server) as url:
        settings = JudgeSettings(model="gpt-5-mini", rubric="r", endpoint=url, cache=str(tmp_path), retries=0)
        client = client_of(settings)
        asyncio.run(client.check_server())
        assert client.counts.calls == 0, "the check is not part of the run's budget"
        assert asyncio.run(score(client, settings, "Paris")) == 1.0
        assert asyncio.run(score(client, settings, "Lyon")) == 1.0
    assert [sent["max_completion_tokens"] for sent in server.requests] == [512, 512 + 8192, 512 + 8192]
    assert client.counts.calls == 3 and client.counts.tokens == 3 * 20 + 517 + 2 * 2005


def test_judge_is_charged_for_reasoning_that_the_endpoint_does_not_count(tmp_path: Path) -> None:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["max_tokens"] < 8192:
            raise Refusal(400, "Could not finish the message because max_tokens or model output limit was reached.")
        return completion('{"score": 10}')

    with serving_model(Server(answer)) as url:
        settings = settings_for(url, tmp_path)
        client = client_of(settings)
        assert asyncio.run(score(client, settings, "Paris")) == 1.0
    assert client.counts.tokens > settings.max_tokens


@pytest.mark.parametrize(("status", "hint"), [("401", "key_env"), ("404", "check model"), ("400", "rejected")])
def test_client_error_names_the_judge_setting_to_change(status: str, hint: str, tmp_path: Path) -> None:
    server = JudgeServer(by_city, faults=[status])
    with pytest.raises(UserError, match=hint) as error:
        scores(server, tmp_path, "Lyon")
    assert len(server.requests) == 1
    assert "\n" not in str(error.value) and "--" not in str(error.value)


@pytest.mark.parametrize("status", ["401", "403"])
def test_client_error_names_the_source_of_a_refused_key(
    status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-canary")
    (tmp_path / "key").write_text("sk-canary")
    file = str(tmp_path / "key")
    for named, where in (({"key_env": "JUDGE_KEY"}, "JUDGE_KEY"), ({"key_file": file}, f"key_file {file}")):
        with pytest.raises(Outage) as error:
            scores(JudgeServer(by_city, faults=[status]), tmp_path, "Lyon", **named)
        refused = f"the judge m: 127.0.0.1 refused the key ({status}) (refused Bearer ***)"
        assert str(error.value) == f"{refused}: replace the key in {where}"


BAD = {
    "prose": "I would say seven out of ten.",
    "prose around it": 'Here: {"score": 7}',
    "broken": '{"score": 7',
    "too high": '{"score": 11}',
    "negative": '{"score": -1}',
    "text": '{"score": "7"}',
    "true": '{"score": true}',
    "not a number": '{"score": NaN}',
    "nothing": "",
    "other field": '{"points": 7}',
    "more fields": '{"score": 7, "note": 1}',
    "twice": '{"score": 1, "score": 10}',
    "a list": "[7]",
    "deep": "[" * 50_000,
}


@pytest.mark.parametrize("bad", BAD)
def test_read_score_rejects_everything_but_the_requested_json(bad: str) -> None:
    with pytest.raises(UnreadableVerdict):
        read_score(BAD[bad], (0, 10))


@given(st.text())
def test_read_score_accepts_or_rejects_any_text(text: str) -> None:
    with suppress(UnreadableVerdict):
        assert 0 <= read_score(text, (0, 10)) <= 1


@given(low=st.integers(-9, 9), size=st.integers(1, 9), share=st.integers(0, 8))
def test_read_score_is_linear_in_the_scale(low: int, size: int, share: int) -> None:
    text = json.dumps({"score": low + size * share / 8})
    assert read_score(f"<think>{{}}</think> {text}", (low, low + size)) == pytest.approx(share / 8)


def test_client_asks_again_for_unreadable_answers(tmp_path: Path) -> None:
    server = JudgeServer(lambda messages: BAD["prose"] + "<<<END agent>>><|im_end|>")
    with serving(server) as url:
        settings = settings_for(url, tmp_path)
        client = client_of(settings)
        with pytest.raises(InfrastructureFailure, match=r"gave no verdict \(asked 3 times\)"):
            asyncio.run(score(client, settings, "Lyon"))
    assert (client.counts.calls, client.counts.unreadable) == (3, 3)
    assert [len(request["messages"]) for request in server.requests] == [2, 4, 4]
    assert "That cannot be read" in server.requests[1]["messages"][3]["content"]
    assert "<<" not in server.requests[1]["messages"][2]["content"]


def test_client_error_quotes_the_answer_and_whether_it_was_cut(tmp_path: Path) -> None:
    server = JudgeServer(lambda messages: '{"reason":\n' + "so " * 1000, finish_reason="length")
    with pytest.raises(InfrastructureFailure) as told:
        scores(server, tmp_path, "Paris", asks=2, max_tokens=64)
    fix = "it was cut at a token limit (raise its max_tokens above 64, or the limit of its server if that is lower)"
    assert f'(asked 2 times): {fix}; its last answer: "{{\\"reason\\": so so ' in str(told.value)
    assert "\n" not in str(told.value) and len(str(told.value)) < 400
    assert "it was cut at a token limit" in server.requests[1]["messages"][3]["content"]


@pytest.mark.parametrize(("temperature", "requests"), [(0.0, 2), (0.5, 4)])
def test_client_repeats_a_request_without_verdict_only_if_answers_vary(
    temperature: float, requests: int, tmp_path: Path
) -> None:
    """An episode that is retried makes the same request again."""
    server = JudgeServer(lambda messages: "no idea")
    with serving(server) as url:
        settings = settings_for(url, tmp_path, temperature=temperature, asks=2)
        client = client_of(settings)
        for _ in range(2):
            with pytest.raises(InfrastructureFailure, match=r"gave no verdict \(asked 2 times\)"):
                asyncio.run(score(client, settings, "Paris"))
    assert len(server.requests) == client.counts.calls == requests


def test_client_caches_an_answer_readable_at_the_second_try(tmp_path: Path) -> None:
    def script(messages: list[dict[str, str]]) -> str:
        return "well..." if len(messages) == 2 else '```json\n{"score": 7}\n```'

    server = JudgeServer(script)
    found, counts = scores(server, tmp_path, "Lyon")
    assert found == [0.7] and (counts.calls, counts.unreadable) == (2, 1)
    again, counts = scores(server, tmp_path, "Lyon")  # another port, so another endpoint: asked for again
    assert again == [0.7] and counts.calls == 2


def test_client_shares_equal_concurrent_requests(tmp_path: Path) -> None:
    server = JudgeServer(by_city, wait_s=0.1)
    found, counts = scores(server, tmp_path, *["Lyon", "Paris"] * 20)
    assert found == [0.25, 1.0] * 20
    assert (len(server.requests), counts.calls, counts.cached) == (2, 2, 38)


def test_cache_survives_restarts_and_broken_lines(tmp_path: Path) -> None:
    server = JudgeServer(by_city)
    with serving(server) as url:
        settings = settings_for(url, tmp_path)
        assert asyncio.run(score(client_of(settings), settings, "Lyon")) == 0.25
        file = tmp_path / "answers.jsonl"
        file.write_bytes(b'{"key": 3}\n[1]\n\xff\xfe\n' + file.read_bytes() + b'{"key": "torn')
        fresh = client_of(settings)
        assert asyncio.run(score(fresh, settings, "Lyon")) == 0.25
        assert asyncio.run(score(fresh, settings, "Rome")) == 0.0
        last = client_of(settings)
        assert [asyncio.run(score(last, settings, each)) for each in ("Lyon", "Rome")] == [0.25, 0.0]
    assert len(server.requests) == 2
    assert (last.counts.calls, last.counts.tokens, last.counts.cached) == (0, 0, 2)


def test_cache_sees_answers_of_other_processes(tmp_path: Path) -> None:
    server = JudgeServer(by_city)
    with serving(server) as url:
        settings = settings_for(url, tmp_path)
        one, other = client_of(settings), client_of(settings)
        assert asyncio.run(score(other, settings, "Rome")) == 0.0
        assert asyncio.run(score(one, settings, "Lyon")) == 0.25
        assert asyncio.run(score(other, settings, "Lyon")) == 0.25
    assert len(server.requests) == 2 and other.counts.cached == 1


REQUEST: dict[str, Any] = {
    "identity": ("http://a/v1/chat/completions", "m"),
    "messages": [system("s"), user("u")],
    "temperature": 0.0,
    "max_tokens": 10,
}
OTHERS: dict[str, Any] = {
    "another endpoint": {"identity": ("http://b/v1/chat/completions", "m")},
    "another model": {"identity": ("http://a/v1/chat/completions", "n")},
    "another text": {"messages": [system("s"), user("v")]},
    "another role": {"messages": [user("s"), user("u")]},
    "another order": {"messages": [user("u"), system("s")]},
    "another temperature": {"temperature": 0.5},
    "another length": {"max_tokens": 11},
}


ONE, OTHER = (ImagePart(data=b"\x89PNG" + name) for name in (b"one", b"other"))
IMAGES = ([ONE, "u"], [OTHER, "u"], ["u", ONE], [ONE, ONE, "u"], ["u"])


def test_request_key_differs_for_different_images() -> None:
    keys = {request_key(**{**REQUEST, "messages": [user(each)]}) for each in IMAGES}
    assert len(keys) == len(IMAGES)
    assert request_key(**{**REQUEST, "messages": [user([ImagePart(data=ONE.data), "u"])]}) in keys


def test_token_estimate_counts_images() -> None:
    assert estimate_tokens([user([ONE, OTHER, "u"])]) == estimate_tokens([user("u")]) + 2 * IMAGE_TOKENS


@pytest.mark.parametrize("other", OTHERS)
def test_request_key_differs_for_different_requests(other: str) -> None:
    assert request_key(**REQUEST) == request_key(**dict(REQUEST))
    assert request_key(**REQUEST) != request_key(**{**REQUEST, **OTHERS[other]})


def test_cache_misses_when_settings_change(tmp_path: Path) -> None:
    server = JudgeServer(by_city)
    with serving(server) as url:
        for options in ({}, {"temperature": 0.5}, {"max_tokens": 99}, {"scale": (0.0, 20.0)}):
            settings = settings_for(url, tmp_path, **options)
            asyncio.run(score(client_of(settings), settings, "Lyon"))
    assert len(server.requests) == 4


def test_client_limits_concurrent_requests(tmp_path: Path) -> None:
    server = JudgeServer(lambda messages: '{"score": 1}', wait_s=0.02)
    scores(server, tmp_path, *(f"City{number}" for number in range(16)), concurrency=3)
    assert server.most_busy == 3


@pytest.mark.parametrize("faults", [(), ("500", "429 1", "drop", "html") * 3])
def test_budget_of_calls_holds_for_concurrent_requests(faults: tuple[str, ...], tmp_path: Path) -> None:
    server = JudgeServer(lambda messages: '{"score": 1}', faults=faults, wait_s=0.01)

    async def run(client: JudgeClient) -> list[Any]:
        asked = [score(client, settings, f"City{number}") for number in range(64)]
        return await asyncio.gather(*asked, return_exceptions=True)

    with serving(server) as url:
        settings = settings_for(url, tmp_path, max_calls=20, concurrency=64)
        client = client_of(settings)
        found = asyncio.run(run(client))
        kept = [place for place, each in enumerate(found) if each == 0.1]
        assert len(server.requests) == client.counts.calls == 20
        assert 20 - len(faults) <= len(kept) <= 20
        refused = [each for each in found if isinstance(each, UserError)]
        assert len(refused) == 64 - len(kept)
        assert "budget of 20 calls is spent: raise its max_calls" in str(refused[0])
        assert asyncio.run(score(client, settings, f"City{kept[0]}")) == 0.1, "what is kept costs nothing"
    assert len(server.requests) == 20


@pytest.mark.parametrize("usage", [True, False])
def test_budget_of_tokens_waits_for_running_requests(usage: bool, tmp_path: Path) -> None:
    """A request could take some 600 tokens, and takes 100 where it is counted: many fit, though few at once."""
    server = JudgeServer(lambda messages: '{"score": 1}', usage=usage, wait_s=0.005)

    async def run(client: JudgeClient) -> list[Any]:
        asked = [score(client, settings, f"City{number}") for number in range(64)]
        return await asyncio.gather(*asked, return_exceptions=True)

    with serving(server) as url:
        settings = settings_for(url, tmp_path, max_tokens_total=5000, max_tokens=100, concurrency=64)
        client = client_of(settings)
        found = asyncio.run(run(client))
    fine = sum(each == 0.1 for each in found)
    assert client.counts.tokens <= 5000
    assert fine == len(server.requests) and len(found) - fine == sum(isinstance(each, UserError) for each in found)
    assert fine >= 30 if usage else 5 <= fine <= 12
    assert all("raise its max_tokens_total" in str(each) for each in found if isinstance(each, UserError))


def test_client_cancelled_caller_does_not_cancel_shared_request(tmp_path: Path) -> None:
    server = JudgeServer(by_city, wait_s=0.1)

    async def run() -> float:
        first = asyncio.create_task(score(client, settings, "Lyon"))
        second = asyncio.create_task(score(client, settings, "Lyon"))
        await asyncio.sleep(0)  # both ask: one call for the two of them
        first.cancel()
        return await second

    with serving(server) as url:
        settings = settings_for(url, tmp_path)
        client = client_of(settings)
        assert asyncio.run(run()) == 0.25
    assert len(server.requests) == 1


def test_cache_error_names_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        client_of(settings_for("http://127.0.0.1:1/v1", tmp_path / "file" / "below"))


def test_client_error_reports_an_unreachable_endpoint(tmp_path: Path) -> None:
    settings = settings_for("http://127.0.0.1:1/v1", tmp_path, retries=1)
    with pytest.raises(UserError, match=r"no answer from http://127\.0\.0\.1:1/v1"):
        asyncio.run(score(client_of(settings), settings, "Lyon"))


def test_absolute_prompt_asks_for_one_json_object(tmp_path: Path) -> None:
    messages: list[Message] = absolute_prompt((("agent", "x"),), "", "", settings_for("http://a/v1", tmp_path))
    assert [message.role for message in messages] == ["system", "user"]
    assert "one JSON object and nothing else" in messages[0].content


def test_registry_restores_spending_of_a_resumed_run(tmp_path: Path) -> None:
    server = JudgeServer(by_city)
    with serving(server) as url:
        settings = settings_for(url, tmp_path, max_calls=2)
        first = JudgeRegistry()
        asyncio.run(score(first.client(settings), settings, "Lyon"))
        saved = json.loads(json.dumps(first.counts()))
        second = JudgeRegistry()
        assert second.client(settings).counts.calls == 0 and second.counts() != saved
        second.restore(saved)
        second.restore(saved)
        assert second.counts() == saved and second.client(settings).counts.calls == 1
        third = JudgeRegistry(spent=saved | {"not used yet": {"calls": 7}})
        assert third.client(settings).counts.tokens == 100 and third.counts()["not used yet"] == {"calls": 7}
        asyncio.run(score(third.client(settings), settings, "Paris"))
        with pytest.raises(UserError, match="2 calls is spent"):
            asyncio.run(score(third.client(settings), settings, "Rome"))
    assert len(server.requests) == 2


def test_registry_logs_each_request_before_it_is_sent(tmp_path: Path) -> None:
    log: list[tuple[str, int, int]] = []
    server = JudgeServer(lambda messages: f'{{"score": {len(log)}}}')
    with serving(server) as url:
        settings = settings_for(url, tmp_path)
        judges = JudgeRegistry(on_spend=lambda *spent: log.append(spent))
        assert asyncio.run(score(judges.client(settings), settings, "Lyon")) == 0.1, "one entry when it answers"
    (key,) = judges.counts()
    (before, reserved), (after, difference) = ((calls, tokens) for _, calls, tokens in log)
    assert {judge for judge, *_ in log} == {key} and (before, after) == (1, 0)
    assert reserved + difference == judges.client(settings).counts.tokens == 100


def test_registries_of_two_runs_share_nothing(tmp_path: Path) -> None:
    settings = settings_for("http://127.0.0.1:1/v1", tmp_path)
    one, other = JudgeRegistry(), JudgeRegistry()
    one.client(settings).counts.calls = 5
    assert other.metrics() == {} and other.client(settings).counts.calls == 0
    assert one.client(settings) is one.client(settings) and one.metrics()["judge/calls"] == 5


def test_registry_close_ends_connections_and_later_requests_reconnect(tmp_path: Path) -> None:
    judges, server = JudgeRegistry(), JudgeServer(by_city)

    async def run() -> list[float]:
        first = await score(judges.client(settings), settings, "Lyon")
        await judges.close()
        await judges.close()
        return [first, await score(judges.client(settings), settings, "Paris")]

    with serving(server) as url:
        settings = settings_for(url, tmp_path)
        assert asyncio.run(run()) == [0.25, 1.0]
    assert judges.metrics()["judge/calls"] == 2


def test_docs_list_every_option_of_a_judge() -> None:
    page = (Path(__file__).parents[2] / "docs/rewards.md").read_text()
    table = page.partition("### Options of a judge")[2].partition("###")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    for name, field in JudgeSettings.model_fields.items():
        (default,) = [text for names, text in rows if f"`{name}`" in names]
        expected = "required" if field.is_required() else json.dumps(field.default)
        assert default.strip().strip("`").replace(".0", "") == expected.replace(".0", ""), name
