import asyncio

from turnwise.core.protocols import Completion, Sampling
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Stop
from turnwise.engine.scripted import ScriptedEngine

END = 1
KEY = EpisodeKey(run_seed=0, round=0, task=Task(env="test", seed=4), member=2)


def test_script_gets_episode_turn_and_context() -> None:
    seen = []

    def script(key: EpisodeKey, turn: int, ids: list[int]) -> list[int]:
        seen.append((key.member, turn, ids))
        return [50 + turn, END]

    async def scenario() -> None:
        async with ScriptedEngine(script, [END]).open(KEY) as session:
            await session.generate([3, 4], Sampling(max_tokens=5))
            await session.generate([5], Sampling(max_tokens=5))
            await session.generate([6, 7], Sampling(max_tokens=5), restart=True)

    asyncio.run(scenario())
    assert seen == [(2, 0, [3, 4]), (2, 1, [3, 4, 50, END, 5]), (2, 2, [6, 7])]


def test_scripted_completion_respects_max_tokens_and_stop_ids() -> None:
    async def say(ids: list[int], sampling: Sampling) -> Completion:
        async with ScriptedEngine(lambda key, turn, context: ids, [END]).open(KEY) as session:
            return await session.generate([3], sampling)

    whole = asyncio.run(say([8, 9, END], Sampling(max_tokens=3, temperature=0.7)))
    assert whole == Completion(ids=(8, 9, END), logprobs=(0.0,) * 3, stop=Stop.EOS, temperature=0.7)
    cut = asyncio.run(say([8, 9, END], Sampling(max_tokens=2)))
    assert (cut.ids, cut.stop, len(cut.logprobs)) == ((8, 9), Stop.LENGTH, 2)
    assert asyncio.run(say([], Sampling(max_tokens=2))).stop is Stop.LENGTH
    assert asyncio.run(say([8], Sampling(max_tokens=2, temperature=0.0))).temperature == 1.0


def test_scripted_sessions_have_separate_contexts() -> None:
    async def scenario() -> list[tuple[int, ...]]:
        policy = ScriptedEngine(lambda key, turn, ids: [sum(ids)], [END])
        async with policy.open(KEY) as first, policy.open(KEY) as second:
            said = [await first.generate([3], Sampling(max_tokens=5))]
            said.append(await second.generate([4], Sampling(max_tokens=5)))
            said.append(await first.generate([5], Sampling(max_tokens=5)))
        return [completion.ids for completion in said]

    assert asyncio.run(scenario()) == [(3,), (4,), (11,)]
