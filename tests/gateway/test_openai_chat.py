"""Chat Completions through the official client."""

import asyncio

import openai

from episodes_for_tests import says
from gateway_for_tests import RecordingPolicy, episode_key, open_gateway


def client_of(gateway, episode) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=episode.bearer, max_retries=0)


def test_openai_chat_two_turns_extend_the_sampled_ids():
    policy = RecordingPolicy(says("hello", "again"))

    async def run():
        async with open_gateway(policy) as gateway:
            episode = await gateway.open_episode(episode_key())
            client = client_of(gateway, episode)
            said = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
            first = await client.chat.completions.create(model="x", messages=said)
            said += [first.choices[0].message, {"role": "user", "content": "More"}]
            second = await client.chat.completions.create(model="x", messages=said)
            return first, second, episode.turns()

    first, second, turns = asyncio.run(run())
    assert first.choices[0].message.content == "hello"
    assert second.choices[0].message.content == "again"
    assert [turn.extends for turn in turns] == [False, True]
    assert [turn.action_ids for turn in turns] == [completion.ids for _, completion in policy.samples]
    context, _ = policy.samples[1]
    assert (*turns[0].context_ids, *turns[0].action_ids, *turns[1].context_ids) == context
