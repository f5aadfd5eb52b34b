"""Clients that send a reply back without its thinking: a new branch in every dialect, and the weights of its tokens."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cache
from typing import Any

import anthropic
import openai
import pytest
import torch

from episodes_for_tests import end_id, renderer, spoken, task_of
from gateway_for_tests import episode_key, full_contexts, open_gateway
from learners_for_tests import estimate_of, make_learner, settings_of
from turnwise.algos.losses import AGGREGATIONS
from turnwise.core.trajectory import Group, Status, Trajectory, Turn
from turnwise.engine.scripted import ScriptedEngine
from turnwise.gateway.agents import Access
from turnwise.run.build_learner import update_settings
from turnwise.training.update import train_samples

THOUGHT = "two and two"
ANSWERS = f"<think>\n{THOUGHT}\n</think>\n\nIt is  4.", "Yes."
QUESTION: Any = {"role": "user", "content": "2 + 2?"}
AGAIN: Any = {"role": "user", "content": "Sure?"}
Talk = Callable[[Access, bool], Awaitable[None]]


async def talk_by_chat(access: Access, keeps: bool) -> None:
    async with openai.AsyncOpenAI(base_url=f"{access.url}/v1", api_key=access.key) as client:
        reply = await client.chat.completions.create(model="m", messages=[QUESTION])
        message: Any = reply.choices[0].message
        again = message if keeps else {"role": "assistant", "content": message.content}
        await client.chat.completions.create(model="m", messages=[QUESTION, again, AGAIN])


async def talk_by_responses(access: Access, keeps: bool) -> None:
    async with openai.AsyncOpenAI(base_url=f"{access.url}/v1", api_key=access.key) as client:
        reply = await client.responses.create(model="m", input=[QUESTION])
        items: list[Any] = [
            item.model_dump(exclude_none=True) for item in reply.output if keeps or item.type != "reasoning"
        ]
        await client.responses.create(model="m", input=[QUESTION, *items, AGAIN])


async def talk_by_messages(access: Access, keeps: bool) -> None:
    async with anthropic.AsyncAnthropic(base_url=access.url, api_key=access.key) as client:
        settings: Any = {"model": "m", "max_tokens": 100, "thinking": {"type": "adaptive"}}
        reply = await client.messages.create(messages=[QUESTION], **settings)
        blocks: list[Any] = [block for block in reply.content if keeps or block.type != "thinking"]
        await client.messages.create(messages=[QUESTION, {"role": "assistant", "content": blocks}, AGAIN], **settings)


@cache
def recorded(talk: Talk, keeps: bool) -> tuple[Turn, ...]:
    return asyncio.run(record(talk, keeps))


async def record(talk: Talk, keeps: bool) -> tuple[Turn, ...]:
    policy = ScriptedEngine(lambda key, turn, ids: spoken(ANSWERS["Sure?" in renderer().decode(ids)]), [end_id()])
    async with open_gateway(policy) as gateway:
        episode = await gateway.open_episode(episode_key())
        await talk(Access(url=gateway.url, key=episode.bearer), keeps)
        return episode.turns()


@pytest.mark.parametrize("talk", [talk_by_chat, talk_by_responses, talk_by_messages])
def test_dropped_thinking_starts_a_branch_of_the_sampled_rest(talk: Talk) -> None:
    kept, dropped = (recorded(talk, keeps) for keeps in (True, False))
    assert [turn.extends for turn in kept] == [False, True]
    assert [turn.extends for turn in dropped] == [False, False]
    assert [turn.action_ids for turn in dropped] == [turn.action_ids for turn in kept]
    with_thinking, without = (full_contexts(turns)[1][0] for turns in (kept, dropped))
    thinking = spoken(ANSWERS[0].removesuffix("It is  4."))[:-1]
    at = len(kept[0].context_ids)
    assert with_thinking[at : at + len(thinking)] == tuple(thinking)
    assert without == (*with_thinking[:at], *with_thinking[at + len(thinking) :])
    assert end_id() in without and THOUGHT not in renderer().decode(without)


def with_few_ids(turn: Turn) -> Turn:
    """Return the turn with ids of the small model of these tests."""
    context, action = (tuple(token % 10 for token in ids) for ids in (turn.context_ids, turn.action_ids))
    return replace(turn, context_ids=context, action_ids=action)


@pytest.mark.parametrize("aggregation", sorted(AGGREGATIONS))
def test_branches_train_each_token_once_with_the_weight_of_one_context(aggregation: str) -> None:
    """One member has a single context and the other two branches, of the same sampled tokens."""
    episodes = [recorded(talk_by_chat, keeps) for keeps in (True, False)]
    task = task_of("agent")
    members = tuple(
        Trajectory(
            task=task,
            member=member,
            attempt=0,
            turns=tuple(map(with_few_ids, turns)),
            status=Status.FAILED,
            turn_rewards=(0.0, float(member)),
        )
        for member, turns in enumerate(episodes)
    )
    config = settings_of("no critic", algo__aggregation=aggregation)
    estimated = estimate_of([Group(task=task, trajectories=members)], make_learner(config), config)
    assert estimated is not None
    samples = train_samples(estimated, {0, 1}, update_settings(config.algo, config.critic, config.train, config.seed))
    assert [sample.sample.trajectory for sample in samples] == [0, 1, 1]
    weights = [torch.cat([each.weights[each.sample.mask] for each in part]) for part in (samples[:1], samples[1:])]
    assert len(weights[0]) == sum(len(turn.action_ids) for turn in episodes[0])
    assert bool((weights[0] > 0).all()) and torch.equal(weights[0], weights[1])
    advantages = [set(each.advantages[each.sample.mask].tolist()) for each in samples]
    assert len(advantages[1]) == 1 and advantages[1] == advantages[2] != advantages[0]
