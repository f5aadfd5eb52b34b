"""Answered calls are in the store, also after kill -9, and an episode continues from them."""

import asyncio
import os
import signal
import sqlite3
import sys
from pathlib import Path

import httpx2
import pytest

from episodes_for_tests import says
from gateway_for_tests import RecordingPolicy, episode_key, full_contexts, open_gateway
from processes_for_tests import forked_with_output
from turnwise.core.errors import UserError
from turnwise.gateway.store import CallStore, StoredCall

ASK = [{"role": "user", "content": "Hi"}]
BEARER = {"Authorization": "Bearer the-bearer"}


def stored(number: int, **changes: object) -> StoredCall:
    fields = {
        "id": f"call{number}",
        "episode": "e",
        "number": number,
        "choice": 0,
        "branch": 0,
        "extends": False,
        "conversation": b"c",
        "reply": b"r",
        "request": b"q",
        "context_ids": (1, 2**40),
        "action_ids": (3,),
        "logprobs": (-0.1234567890123456,),
        "policy_versions": (),
        "details": {"asked": {}},
    }
    return StoredCall(**(fields | changes))  # type: ignore[arg-type]


def test_store_returns_calls_as_written(tmp_path: Path):
    calls = [stored(number) for number in range(20)]

    async def run():
        store = CallStore(tmp_path / "calls.sqlite")
        await asyncio.gather(*(store.add_calls([call]) for call in calls))
        await store.add_calls([stored(0, id="other", episode="f")])
        await store.set_reward("e", "", 1.0)
        await store.set_reward("e", "", 2.0)
        await store.set_reward("e", "call3", -1.0)
        found = await store.calls("e"), await store.rewards("e")
        await store.clear("e")
        left = await store.calls("e"), await store.rewards("e"), len(await store.calls("f"))
        store.close()
        return found, left

    (found, rewards), left = asyncio.run(run())
    assert found == calls
    assert rewards == {"": 2.0, "call3": -1.0}
    assert left == ([], {}, 1)


def test_store_failed_write_fails_its_callers_and_leaves_nothing():
    async def run():
        store = CallStore(None)
        await store.add_calls([stored(0)])
        with pytest.raises(sqlite3.IntegrityError):
            await store.add_calls([stored(1), stored(0)])
        await store.add_calls([stored(2)])
        return [call.number for call in await store.calls("e")]

    assert asyncio.run(run()) == [0, 2]


def serve(folder: Path) -> None:
    """Print the URL of a gateway with an open episode, and serve until the process is killed."""

    async def run():
        async with open_gateway(says("first", "second"), folder) as gateway:
            await gateway.open_episode(episode_key(), bearer="the-bearer")
            sys.stdout.write(f"{gateway.url}\n")
            await asyncio.Event().wait()

    asyncio.run(run())


def test_store_keeps_answered_calls_after_a_kill(tmp_path: Path):
    with forked_with_output(serve, tmp_path) as (server, lines):
        url = lines.readline().strip()
        first = httpx2.post(f"{url}/v1/chat/completions", json={"messages": ASK}, headers=BEARER, timeout=60)
        os.kill(server.pid, signal.SIGKILL)
    assert first.json()["choices"][0]["message"]["content"] == "first"

    policy = RecordingPolicy(says("second"))

    async def resume():
        async with open_gateway(policy, tmp_path) as gateway:
            episode = await gateway.open_episode(episode_key(), bearer="the-bearer", restore=True)
            async with httpx2.AsyncClient(base_url=gateway.url, headers=BEARER, timeout=60) as http:
                chat = "/v1/chat/completions"
                retried = {"x-stainless-retry-count": "1"}
                again = (await http.post(chat, json={"messages": ASK}, headers=retried)).json()
                said = [*ASK, again["choices"][0]["message"], {"role": "user", "content": "More"}]
                await http.post(chat, json={"messages": said})
            return again, episode.turns()

    again, turns = asyncio.run(resume())
    assert {**again, "created": 0} == {**first.json(), "created": 0}
    assert [turn.extends for turn in turns] == [False, True]
    ((context, completion),) = policy.samples
    assert full_contexts(turns)[1][0] == context
    assert turns[1].action_ids == completion.ids


def test_store_fresh_episode_replaces_an_interrupted_one(tmp_path: Path):
    async def run():
        for _ in range(2):
            async with open_gateway(says("hello"), tmp_path) as gateway:
                episode = await gateway.open_episode(episode_key())
                headers = {"Authorization": f"Bearer {episode.bearer}"}
                async with httpx2.AsyncClient(base_url=gateway.url, headers=headers, timeout=60) as http:
                    answer = await http.post("/v1/chat/completions", json={"messages": ASK})
        return answer.status_code, len(episode.turns())

    assert asyncio.run(run()) == (200, 1)


def test_store_keeps_responses_for_a_restarted_gateway(tmp_path: Path):
    """`previous_response_id` names responses of an earlier process, and the ids are extended."""

    async def ask(policy: RecordingPolicy, text: str, previous: str | None, restore: bool):
        async with open_gateway(policy, tmp_path) as gateway:
            episode = await gateway.open_episode(episode_key(), bearer="the-bearer", restore=restore)
            async with httpx2.AsyncClient(base_url=gateway.url, headers=BEARER, timeout=60) as http:
                body = {"input": text, "previous_response_id": previous}
                reply = (await http.post("/v1/responses", json=body)).json()
            return reply.get("id"), episode.turns()

    previous: str | None = None
    for number, text in enumerate(["one", "two", "three"]):
        policy = RecordingPolicy(says(f"answer {number}"))
        previous, turns = asyncio.run(ask(policy, text, previous, restore=number > 0))
        ((context, completion),) = policy.samples
        assert full_contexts(turns)[-1][0] == context and turns[-1].action_ids == completion.ids
    assert [turn.extends for turn in turns] == [False, True, True]
    assert asyncio.run(ask(RecordingPolicy(says("x")), "four", "resp_unknown", restore=True))[0] is None


def test_file_that_is_no_database_is_an_error(tmp_path: Path) -> None:
    (file := tmp_path / "notes.txt").write_text("Buy milk. " * 99)
    with pytest.raises(UserError, match=r"notes\.txt \(file is not a database\)\. Give another file"):
        CallStore(file)
    with pytest.raises(UserError, match="unable to open database file"):
        CallStore(tmp_path)
