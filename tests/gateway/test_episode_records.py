"""The records of an episode: enforced sampling, retries, order of turns, rewards, and all of it after a restart."""

import asyncio
from typing import Any

import pytest

from episodes_for_tests import limits, says
from gateway_for_tests import (
    FunctionPolicy,
    RecordingPolicy,
    full_contexts,
    open_episode,
    request_of,
    run_episode,
)
from turnwise.core.messages import Message, ToolSpec, assistant, text_parts, user
from turnwise.core.protocols import Completion, Sampling
from turnwise.core.trajectory import Stop
from turnwise.gateway.chat import ContextOverflow, RequestError
from turnwise.gateway.store import CallStore

ADD = ToolSpec(name="add", description="Add.", parameters={"type": "object", "properties": {}})


@pytest.mark.parametrize(
    ("asked", "used"),
    [
        ({"max_tokens": 1000}, Sampling(max_tokens=10, stop=("END",))),
        ({"max_tokens": 3}, Sampling(max_tokens=3, stop=("END",))),
        ({}, Sampling(max_tokens=10, stop=("END",))),
        ({"stop": ("\n", "END")}, Sampling(max_tokens=10, stop=("END", "\n"))),
    ],
)
def test_episode_sampling_keeps_the_enforced_limits(asked: dict[str, Any], used: Sampling):
    """The caller may lower the token limit and add stop strings; it can neither raise the limit nor remove any."""
    seen = list[Sampling]()

    async def generate(sampling: Sampling) -> Completion:
        seen.append(sampling)
        return Completion(ids=(72,), logprobs=(0.0,), stop=Stop.LENGTH, temperature=1.0)

    async def talk(episode):
        await episode.reply(request_of(user("Hi"), **asked))

    run_episode(FunctionPolicy(generate), talk, limits=limits(max_new_tokens=10, stop=("END",)))
    assert seen == [used]


@pytest.mark.parametrize("words", [60, 30_000])
def test_episode_overflow_is_recorded(words: int):
    """Both for a prompt that is encoded first and for one that is refused by its number of characters."""

    async def talk(episode):
        with pytest.raises(ContextOverflow):
            await episode.reply(request_of(user("word " * words)))
        return episode.overflowed

    assert run_episode(says("hello"), talk, limits=limits(max_tokens=64))[0]


def test_episode_retry_belongs_to_the_latest_equal_request():
    async def talk(episode):
        request = request_of(user("Hi"))
        _, latest, again = [(await episode.reply(request, retry=retry))[0].call for retry in (0, 0, 1)]
        return latest, again

    (latest, again), turns, _ = run_episode(says("hello"), talk)
    assert again == latest
    assert len(turns) == 2


def test_episode_posted_reward_is_its_own():
    """Rewards of calls are in the turns."""

    async def talk(episode):
        before = episode.posted
        (reply,) = await episode.reply(request_of(user("Hi")))
        await episode.set_reward(2.0, reply.call)
        of_calls = episode.posted
        await episode.set_reward(0.5)
        return before, of_calls, episode.posted

    posted, (turn,), _ = run_episode(says("hello"), talk)
    assert posted == (None, 0.0, 0.5)
    assert turn.reward == 2.0


def test_episode_turns_end_with_the_branch_of_the_latest_request():
    """The outcome is added to the last turn, which must be the agent's last call."""

    async def talk(episode):
        (first,) = await episode.reply(request_of(user("main")))
        await episode.reply(request_of(user("sub-agent")))
        (last,) = await episode.reply(request_of(user("main"), first.message, user("More")))
        return last.call

    last, turns, _ = run_episode(says("hello"), talk)
    assert [turn.info["branch"] for turn in turns] == [1, 0, 0]
    assert turns[-1].info["call"] == last


def test_episode_reopened_sessions_have_new_random_streams():
    """Each closed session of a branch has the same number of sampled tokens; the branch has more each time."""
    policy = RecordingPolicy(says("hello"))

    async def talk(episode):
        said = [user("main")]
        for number in range(4):
            (reply,) = await episode.reply(request_of(*said))
            said += [reply.message, user("More")]
            await episode.reply(request_of(user(f"other {number}")))  # closes the session of the first branch

    run_episode(policy, talk, max_sessions=1)
    assert len(policy.keys) == len({key.branch for key in policy.keys}) == 8


def test_episode_equal_requests_have_their_own_random_streams():
    policy = RecordingPolicy(says("hello"))

    async def talk(episode):
        for _ in range(3):
            await episode.reply(request_of(user("Hi")))

    run_episode(policy, talk)
    assert len({key.branch for key in policy.keys}) == 3


@pytest.mark.parametrize("choice", [0, 1])
def test_episode_equal_replies_are_told_apart_by_their_call_ids(choice: int):
    async def talk(episode):
        replies = await episode.reply(request_of(user("Add"), tools=(ADD,), n=2))
        said = replies[choice].message
        answer = Message(role="tool", parts=text_parts("3"), call_id=said.tool_calls[0].call_id)
        await episode.reply(request_of(user("Add"), said, answer, tools=(ADD,)))

    _, turns, _ = run_episode(says('<tool_call>{"name": "add", "arguments": {}}</tool_call>'), talk)
    assert [turn.info["branch"] for turn in turns if turn.extends] == [choice]


def test_episode_usage_counts_the_whole_context():
    async def talk(episode):
        (first,) = await episode.reply(request_of(user("Hi")))
        (second,) = await episode.reply(request_of(user("Hi"), first.message, user("More")))
        return [first.prompt_tokens, second.prompt_tokens]

    counts, turns, _ = run_episode(says("hello"), talk)
    assert counts == [len(context) for context, _ in full_contexts(turns)]


def test_episode_forgets_the_branch_that_was_unused_for_longest():
    async def talk(episode):
        replies = [(await episode.reply(request_of(user(text))))[0] for text in ("a", "b", "c")]
        await episode.reply(request_of(user("c"), replies[2].message, user("More")))

    _, turns, _ = run_episode(says("hello"), talk, keep=2)
    assert [turn.extends for turn in turns] == [False, False, True]


def test_episode_refused_request_is_not_a_failure_of_the_episode():
    async def talk(episode):
        with pytest.raises(RequestError):
            await episode.reply(request_of(user("Hi"), assistant("prefill")))
        return episode.failure

    assert run_episode(says("hello"), talk)[0] is None


def test_episode_restored_has_the_same_turns_and_rewards():
    async def generate(sampling: Sampling) -> Completion:
        return Completion(
            ids=(72,), logprobs=(-0.5,), stop=Stop.LENGTH, temperature=0.7, policy_versions=(3,), values=(0.25,)
        )

    async def run():
        store = CallStore(None)
        async with open_episode(FunctionPolicy(generate), store=store, closes_store=False) as first:
            (reply,) = await first.reply(request_of(user("Hi")))
            await first.set_reward(2.0, reply.call)
            await first.set_reward(0.5)
            with pytest.raises(RequestError, match="not a call"):
                await first.set_reward(1.0, "unknown")
        async with open_episode(FunctionPolicy(generate), store=store) as second:
            await second.restore()
        return first, second

    first, second = asyncio.run(run())
    assert second.turns() == first.turns()
    assert second.turns()[0].values == (0.25,)
    assert (second.posted, second.turns()[0].reward) == (0.5, 2.0)


def test_episode_restored_numbers_calls_after_the_stored_ones():
    """Ids of calls, which rewards name, depend on the numbers."""

    async def run():
        store = CallStore(None)
        calls = list[str]()
        for _ in range(3):
            async with open_episode(says("hello"), store=store, closes_store=False) as episode:
                await episode.restore()
                calls += [(await episode.reply(request_of(user("Hi"))))[0].call for _ in range(2)]
        numbers = [(call.number, call.branch) for call in await store.calls(episode.id)]
        store.close()
        return calls, numbers

    calls, numbers = asyncio.run(run())
    assert len(set(calls)) == 6
    assert numbers == [(number, number) for number in range(6)]
