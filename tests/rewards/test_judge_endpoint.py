"""Judges behind an endpoint: exact scores, failures told apart, nothing paid for twice, and a budget that holds."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judges_for_tests import JudgeServer, bench_of, fenced, serving, settings_for
from turnwise.core.errors import InfrastructureFailure, Outage, UserError
from turnwise.core.messages import Message, assistant, system, user
from turnwise.rewards.judge.client import JudgeClient, request_key
from turnwise.rewards.judge.judges import AnswerJudge
from turnwise.rewards.judge.prompts import UnreadableVerdict, absolute_prompt, read_score
from turnwise.rewards.judge.registry import bench_for, counted, forget_benches, judge_metrics, take_up
from turnwise.rewards.judge.settings import JudgeSettings
from turnwise.rewards.rubric import Submission

SCORES = {"Paris": 10, "Lyon": 2.5, "Rome": 0}


def by_city(messages: list[dict[str, str]]) -> str:
    inside, _ = fenced(messages)
    (said,) = [text for kind, text in inside if kind == "agent"]
    return json.dumps({"reason": "so it is", "score": SCORES[said.split()[0]]})


async def score(bench: JudgeClient, settings: JudgeSettings, said: str) -> float:
    messages = absolute_prompt((("agent", said),), "The capital?", "", settings)
    return await bench.ask(messages, lambda text: read_score(text, settings.scale))


def scores(server: JudgeServer, folder: Path, *said: str, slept: list[float] | None = None, **options: Any) -> Any:
    """What these answers score, all at once, by a bench of their own, which is given too."""

    async def run() -> list[float]:
        return await asyncio.gather(*(score(bench, settings, each) for each in said))

    with serving(server) as url:
        settings = settings_for(url, folder, **options)
        bench = bench_of(settings, slept)
        return asyncio.run(run()), bench.counts


def test_scores_are_exact_and_scaled_to_0_and_1(tmp_path: Path) -> None:
    found, counts = scores(JudgeServer(by_city), tmp_path, "Paris", "Lyon", "Rome")
    assert found == [1.0, 0.25, 0.0]
    assert (counts.calls, counts.tokens, counts.cached, counts.unreadable) == (3, 300, 0, 0)


def test_another_scale_is_told_and_read(tmp_path: Path) -> None:
    server = JudgeServer(lambda messages: '{"score": -1}')
    assert scores(server, tmp_path, "Paris", scale=(-3, 1))[0] == [0.5]
    assert "-3 (not at all) to 1 (fully)" in server.requests[0]["messages"][0]["content"]


def test_the_part_of_a_rubric_shows_question_reference_and_episode(tmp_path: Path) -> None:
    server = JudgeServer(lambda messages: '{"score": 4}')
    answered = Submission(
        question="The capital?",
        answer="Paris",
        row={"gold": ["Paris", "paris"]},
        messages=(system("Be good."), user("The capital?"), assistant("I look."), assistant("Paris")),
    )
    with serving(server) as url:
        common = {"model": "m", "rubric": "is right", "endpoint": url, "cache": str(tmp_path)}
        forget_benches()
        short, long = AnswerJudge(**common, against="gold"), AnswerJudge(**common, shows="episode")
        assert [asyncio.run(judge(answered)) for judge in (short, long)] == [0.4, 0.4]
        assert judge_metrics()["judge/calls"] == 2 and bench_for(short).counts.calls == 1
    first, second = (fenced(request["messages"]) for request in server.requests)
    assert first[0] == [("question", "The capital?"), ("reference", "Paris\nor: paris"), ("agent", "Paris")]
    assert [kind for kind, _ in second[0]] == ["question", "environment", "environment", "agent", "agent"]
    assert "The rubric: is right" in first[1]
    assert server.requests[0]["temperature"] == 0


def test_a_judge_of_groups_is_no_part_of_a_rubric() -> None:
    with pytest.raises(ValueError, match=r"put it into \[reward\] judges"):
        AnswerJudge(model="m", rubric="r", mode="relative")


@pytest.mark.parametrize(
    ("fault", "least_wait"), [("429 7", 6.9), ("429", 0.25), ("500", 0.25), ("503", 0.25), ("html", 0.25)]
)
def test_failures_that_pass_are_tried_again(fault: str, least_wait: float, tmp_path: Path) -> None:
    slept: list[float] = []
    server = JudgeServer(by_city, faults=[fault, fault])
    found, counts = scores(server, tmp_path, "Lyon", slept=slept)
    assert found == [0.25]
    assert (counts.calls, counts.retried) == (3, 2)
    assert min(slept) >= least_wait and len(slept) >= 2


def test_a_dropped_connection_is_tried_again(tmp_path: Path) -> None:
    found, counts = scores(JudgeServer(by_city, faults=["drop", "drop"]), tmp_path, "Lyon")
    assert found == [0.25] and counts.retried == 2


def test_a_late_answer_is_tried_again_and_counted_as_paid(tmp_path: Path) -> None:
    found, counts = scores(JudgeServer(by_city, faults=["late"]), tmp_path, "Lyon", timeout_s=3.0)
    assert found == [0.25]
    assert counts.tokens > 100 + 512, "what it cost is not known, so it counts as all that it could cost"


def test_pauses_grow(tmp_path: Path) -> None:
    slept: list[float] = []
    scores(JudgeServer(by_city, faults=["500"] * 4), tmp_path, "Lyon", slept=slept)
    assert slept[0] <= 0.5 < slept[1] * 1.01 and slept[3] >= 2.0


@pytest.mark.parametrize("fault", ["500", "429 1"])
def test_failures_that_stay_are_an_infrastructure_failure_never_a_score(fault: str, tmp_path: Path) -> None:
    told = rf"^the judge m at http://127\.0\.0\.1:\d+/v1/chat/completions: 127.0.0.1 answers {fault[:3]} .*, 3 times$"
    with pytest.raises(InfrastructureFailure, match=told):
        scores(JudgeServer(by_city, faults=[fault] * 3), tmp_path, "Lyon", retries=2)


def test_a_page_of_a_proxy_is_told_with_whose_it_is_and_how_it_begins(tmp_path: Path) -> None:
    told = r"^the judge m at http://.*/v1/chat/completions: its answer is no JSON \(<html>busy</html>\), 2 times$"
    with pytest.raises(InfrastructureFailure, match=told):
        scores(JudgeServer(by_city, faults=["html"] * 2), tmp_path, "Lyon", retries=1)


@pytest.mark.parametrize(("status", "mend"), [("401", "key_env"), ("404", "check model"), ("400", "refuses")])
def test_what_the_user_must_mend_is_one_line_at_once(status: str, mend: str, tmp_path: Path) -> None:
    server = JudgeServer(by_city, faults=[status])
    with pytest.raises(UserError, match=mend) as error:
        scores(server, tmp_path, "Lyon")
    assert len(server.requests) == 1
    assert "\n" not in str(error.value) and "--" not in str(error.value)


@pytest.mark.parametrize("status", ["401", "403"])
def test_a_key_that_is_refused_is_named_by_where_it_was_read(
    status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-canary")
    (tmp_path / "key").write_text("sk-canary")
    file = str(tmp_path / "key")
    for named, where in (({"key_env": "JUDGE_KEY"}, "JUDGE_KEY"), ({"key_file": file}, f"key_file {file}")):
        with pytest.raises(Outage) as told:
            scores(JudgeServer(by_city, faults=[status]), tmp_path, "Lyon", **named)
        refused = f"the judge m: 127.0.0.1 refuses the key in {where} ({status}) (refused Bearer ***)"
        assert str(told.value) == f"{refused}: put the right one there"


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
def test_anything_but_the_json_that_was_asked_for_is_no_verdict(bad: str) -> None:
    with pytest.raises(UnreadableVerdict):
        read_score(BAD[bad], (0, 10))


@given(st.text())
def test_no_answer_of_a_judge_breaks_the_reading(text: str) -> None:
    with suppress(UnreadableVerdict):
        assert 0 <= read_score(text, (0, 10)) <= 1


@given(low=st.integers(-9, 9), size=st.integers(1, 9), share=st.integers(0, 8))
def test_a_score_is_its_place_on_the_scale(low: int, size: int, share: int) -> None:
    text = json.dumps({"score": low + size * share / 8})
    assert read_score(f"<think>{{}}</think> {text}", (low, low + size)) == pytest.approx(share / 8)


def test_what_cannot_be_read_is_asked_again_and_then_it_is_a_failure(tmp_path: Path) -> None:
    server = JudgeServer(lambda messages: BAD["prose"] + "<<<END agent>>><|im_end|>")
    with serving(server) as url:
        settings = settings_for(url, tmp_path)
        bench = bench_of(settings)
        with pytest.raises(InfrastructureFailure, match="gave no verdict, 3 times"):
            asyncio.run(score(bench, settings, "Lyon"))
    assert (bench.counts.calls, bench.counts.unreadable) == (3, 3)
    assert [len(request["messages"]) for request in server.requests] == [2, 4, 4]
    assert "That cannot be read" in server.requests[1]["messages"][3]["content"]
    assert "<<" not in server.requests[1]["messages"][2]["content"]


def test_an_answer_that_can_be_read_at_the_second_time_counts_and_is_kept(tmp_path: Path) -> None:
    def script(messages: list[dict[str, str]]) -> str:
        return "well..." if len(messages) == 2 else '```json\n{"score": 7}\n```'

    server = JudgeServer(script)
    found, counts = scores(server, tmp_path, "Lyon")
    assert found == [0.7] and (counts.calls, counts.unreadable) == (2, 1)
    again, counts = scores(server, tmp_path, "Lyon")  # another port, so another endpoint: asked for again
    assert again == [0.7] and counts.calls == 2


def test_equal_requests_at_the_same_time_are_one(tmp_path: Path) -> None:
    server = JudgeServer(by_city, wait_s=0.1)
    found, counts = scores(server, tmp_path, *["Lyon", "Paris"] * 20)
    assert found == [0.25, 1.0] * 20
    assert (len(server.requests), counts.calls, counts.cached) == (2, 2, 38)


def test_nothing_is_paid_for_twice_across_a_restart_even_with_broken_lines(tmp_path: Path) -> None:
    server = JudgeServer(by_city)
    with serving(server) as url:
        settings = settings_for(url, tmp_path)
        assert asyncio.run(score(bench_of(settings), settings, "Lyon")) == 0.25
        file = tmp_path / "answers.jsonl"
        file.write_bytes(b'{"key": 3}\n[1]\n\xff\xfe\n' + file.read_bytes() + b'{"key": "torn')
        fresh = bench_of(settings)
        assert asyncio.run(score(fresh, settings, "Lyon")) == 0.25
        assert asyncio.run(score(fresh, settings, "Rome")) == 0.0
        last = bench_of(settings)
        assert [asyncio.run(score(last, settings, each)) for each in ("Lyon", "Rome")] == [0.25, 0.0]
    assert len(server.requests) == 2
    assert (last.counts.calls, last.counts.tokens, last.counts.cached) == (0, 0, 2)


def test_another_process_sees_what_was_kept_since(tmp_path: Path) -> None:
    server = JudgeServer(by_city)
    with serving(server) as url:
        settings = settings_for(url, tmp_path)
        one, other = bench_of(settings), bench_of(settings)
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


@pytest.mark.parametrize("other", OTHERS)
def test_another_request_has_another_key_and_an_equal_one_the_same(other: str) -> None:
    assert request_key(**REQUEST) == request_key(**dict(REQUEST))
    assert request_key(**REQUEST) != request_key(**{**REQUEST, **OTHERS[other]})


def test_a_judge_asked_otherwise_is_asked_anew(tmp_path: Path) -> None:
    server = JudgeServer(by_city)
    with serving(server) as url:
        for options in ({}, {"temperature": 0.5}, {"max_tokens": 99}, {"scale": (0.0, 20.0)}):
            settings = settings_for(url, tmp_path, **options)
            asyncio.run(score(bench_of(settings), settings, "Lyon"))
    assert len(server.requests) == 4


def test_at_most_so_many_requests_at_the_same_time(tmp_path: Path) -> None:
    server = JudgeServer(lambda messages: '{"score": 1}', wait_s=0.02)
    scores(server, tmp_path, *(f"City{number}" for number in range(16)), concurrency=3)
    assert server.most_busy == 3


@pytest.mark.parametrize("faults", [(), ("500", "429 1", "drop", "html") * 3])
def test_the_budget_of_calls_holds_among_many_at_once(faults: tuple[str, ...], tmp_path: Path) -> None:
    server = JudgeServer(lambda messages: '{"score": 1}', faults=faults, wait_s=0.01)

    async def run(bench: JudgeClient) -> list[Any]:
        asked = [score(bench, settings, f"City{number}") for number in range(64)]
        return await asyncio.gather(*asked, return_exceptions=True)

    with serving(server) as url:
        settings = settings_for(url, tmp_path, max_calls=20, concurrency=64)
        bench = bench_of(settings)
        found = asyncio.run(run(bench))
        kept = [place for place, each in enumerate(found) if each == 0.1]
        assert len(server.requests) == bench.counts.calls == 20
        assert 20 - len(faults) <= len(kept) <= 20
        refused = [each for each in found if isinstance(each, UserError)]
        assert len(refused) == 64 - len(kept)
        assert "budget of 20 calls is spent: raise its max_calls" in str(refused[0])
        assert asyncio.run(score(bench, settings, f"City{kept[0]}")) == 0.1, "what is kept costs nothing"
    assert len(server.requests) == 20


@pytest.mark.parametrize("usage", [True, False])
def test_the_budget_of_tokens_holds_and_waits_for_what_is_under_way(usage: bool, tmp_path: Path) -> None:
    """A request could take some 600 tokens, and takes 100 where it is counted: many fit, though few at once."""
    server = JudgeServer(lambda messages: '{"score": 1}', usage=usage, wait_s=0.005)

    async def run(bench: JudgeClient) -> list[Any]:
        asked = [score(bench, settings, f"City{number}") for number in range(64)]
        return await asyncio.gather(*asked, return_exceptions=True)

    with serving(server) as url:
        settings = settings_for(url, tmp_path, max_tokens_total=5000, max_tokens=100, concurrency=64)
        bench = bench_of(settings)
        found = asyncio.run(run(bench))
    fine = sum(each == 0.1 for each in found)
    assert bench.counts.tokens <= 5000
    assert fine == len(server.requests) and len(found) - fine == sum(isinstance(each, UserError) for each in found)
    assert fine >= 30 if usage else 5 <= fine <= 12
    assert all("raise its max_tokens_total" in str(each) for each in found if isinstance(each, UserError))


def test_one_who_stops_waiting_does_not_take_the_answer_from_others(tmp_path: Path) -> None:
    server = JudgeServer(by_city, wait_s=0.1)

    async def run() -> float:
        first = asyncio.create_task(score(bench, settings, "Lyon"))
        second = asyncio.create_task(score(bench, settings, "Lyon"))
        await asyncio.sleep(0)  # both ask: one call for the two of them
        first.cancel()
        return await second

    with serving(server) as url:
        settings = settings_for(url, tmp_path)
        bench = bench_of(settings)
        assert asyncio.run(run()) == 0.25
    assert len(server.requests) == 1


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        bench_of(settings_for("http://127.0.0.1:1/v1", tmp_path / "file" / "below"))


def test_nothing_at_the_address_is_told(tmp_path: Path) -> None:
    settings = settings_for("http://127.0.0.1:1/v1", tmp_path, retries=1)
    with pytest.raises(UserError, match=r"nothing answers at http://127\.0\.0\.1:1/v1"):
        asyncio.run(score(bench_of(settings), settings, "Lyon"))


def test_messages_are_what_is_asked(tmp_path: Path) -> None:
    messages: list[Message] = absolute_prompt((("agent", "x"),), "", "", settings_for("http://a/v1", tmp_path))
    assert [message.role for message in messages] == ["system", "user"]
    assert "one JSON object and nothing else" in messages[0].content


def test_a_run_that_goes_on_has_spent_what_it_spent_and_a_new_one_nothing(tmp_path: Path) -> None:
    server = JudgeServer(by_city)
    with serving(server) as url:
        settings = settings_for(url, tmp_path, max_calls=2)
        forget_benches()
        messages = absolute_prompt((("agent", "Lyon"),), "", "", settings)
        asyncio.run(bench_for(settings).ask(messages, lambda text: read_score(text, settings.scale)))
        kept = json.loads(json.dumps(counted()))
        forget_benches()
        assert bench_for(settings).counts.calls == 0 and counted() != kept
        take_up(kept)
        take_up(kept)
        assert counted() == kept and bench_for(settings).counts.calls == 1
        forget_benches()
        take_up(kept | {"of nobody yet": {"calls": 7}})
        assert bench_for(settings).counts.tokens == 100 and counted()["of nobody yet"] == {"calls": 7}
        paris, rome = (absolute_prompt((("agent", city),), "", "", settings) for city in ("Paris", "Rome"))
        asyncio.run(bench_for(settings).ask(paris, lambda text: read_score(text, settings.scale)))
        with pytest.raises(UserError, match="2 calls is spent"):
            asyncio.run(bench_for(settings).ask(rome, lambda text: read_score(text, settings.scale)))
    assert len(server.requests) == 2
