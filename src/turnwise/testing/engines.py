"""Contract tests of policies and engines."""

import asyncio
import math
from collections.abc import Callable, Sequence

from turnwise.core.protocols import Completion, Engine, EngineStats, Policy, Sampling, WeightSource
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Stop
from turnwise.testing.rules import expect


def check_policy(make: Callable[[], Policy], prompt: Sequence[int], reply: Sequence[int]) -> None:
    """Check a `Policy` and its sessions. `prompt` and `reply`: ids of a first and a second message to the model."""
    asyncio.run(_check_policy(make(), list(prompt), list(reply)))


async def _check_policy(policy: Policy, prompt: list[int], reply: list[int]) -> None:
    greedy, sampled = Sampling(max_tokens=8, temperature=0.0), Sampling(max_tokens=8, temperature=0.7)
    async with policy.open(_key(0)) as session:
        before = session.sampling_s
        first = await session.generate(prompt, greedy)
        _check_completion(first, greedy)
        second = await session.generate(reply, greedy)
        _check_completion(second, greedy)
        expect(session.sampling_s >= before >= 0, "sampling_s counts up from 0")
        again = await session.generate(prompt, greedy, restart=True)
        expect(again.ids == first.ids, "restart drops the context")
    async with policy.open(_key(0)) as session:
        whole = await session.generate([*prompt, *first.ids, *reply], greedy)
        expect(whole.ids == second.ids, "sampled tokens join the context, before the ids of the next call")
    alone = await _sample(policy, 1, prompt, sampled)
    _check_completion(alone, sampled)
    together = await asyncio.gather(*(_sample(policy, member, prompt, sampled) for member in range(4)))
    expect(together[1].ids == alone.ids, "equal keys sample equal tokens, whatever else is sampled")
    await _check_fork(policy, prompt, reply, sampled)
    short = await _sample(policy, 0, prompt, Sampling(max_tokens=1))
    expect(len(short.ids) <= 1, "max_tokens is the most that is sampled")


async def _check_fork(policy: Policy, prompt: list[int], reply: list[int], sampling: Sampling) -> None:
    """Check that forks sample what new sessions sample from the same ids, and that they change nothing of others."""
    async with policy.open(_key(5)) as session:
        first = await session.generate(prompt, sampling)
        context = [*prompt, *first.ids]
        async with session.fork(_key(6)) as whole:
            forked = await whole.generate(reply, sampling)
            _check_completion(forked, sampling)
            after_fork = await session.generate(reply, sampling)
        async with session.fork(_key(7), length=len(prompt)) as branch:
            shorter = [await branch.generate(ids, sampling) for ids in ([], reply)]
    expect(forked.ids == (await _sample(policy, 6, [*context, *reply], sampling)).ids, "a fork keeps the context")
    expect(shorter[0].ids == (await _sample(policy, 7, prompt, sampling)).ids, "a fork can keep the first tokens alone")
    async with policy.open(_key(7)) as session:
        again = [await session.generate(ids, sampling) for ids in (prompt, reply)]
    expect(shorter[1].ids == again[1].ids, "a fork goes on as any other session")
    async with policy.open(_key(5)) as session:
        alone = [await session.generate(ids, sampling) for ids in (prompt, reply)]
    expect(after_fork.ids == alone[1].ids, "a fork changes nothing of the session")


async def _sample(policy: Policy, member: int, prompt: Sequence[int], sampling: Sampling) -> Completion:
    async with policy.open(_key(member)) as session:
        return await session.generate(prompt, sampling)


def _check_completion(completion: Completion, sampling: Sampling) -> None:
    count = len(completion.ids)
    expect(count <= sampling.max_tokens, "max_tokens is the most that is sampled")
    expect(len(completion.logprobs) == count, "each sampled token has a log-probability")
    expect(all(value <= 1e-4 for value in completion.logprobs), "log-probabilities are at most 0")
    expect(all(map(math.isfinite, completion.logprobs)), "log-probabilities are finite")
    expect(len(completion.policy_versions) in (0, count), "policy_versions has an entry per token, or none")
    expect(completion.temperature == (sampling.temperature or 1.0), "temperature is that of the log-probabilities")
    expect(isinstance(completion.stop, Stop), "stop says why the turn ended")
    expect(completion.stop is not Stop.LENGTH or count == sampling.max_tokens, "a turn stops early for a reason")


def check_engine(
    make: Callable[[], Engine],
    prompt: Sequence[int],
    reply: Sequence[int],
    *,
    weights: WeightSource,
    others: WeightSource,
) -> None:
    """Check an `Engine`: a policy with weights. It is built with `weights`; `others` differ from them."""
    check_policy(make, prompt, reply)
    asyncio.run(_check_engine(make(), list(prompt), weights, others))


async def _check_engine(engine: Engine, prompt: list[int], weights: WeightSource, others: WeightSource) -> None:
    sampling = Sampling(max_tokens=8)
    built = await _sample(engine, 0, prompt, sampling)
    expect(set(built.policy_versions) <= {0}, "tokens have version 0 before anything is published")
    await engine.publish(1, others)
    changed = await _sample(engine, 0, prompt, sampling)
    expect(set(changed.policy_versions) == {1}, "tokens carry the version that was published last")
    expect(changed.logprobs != built.logprobs, "publish changes the weights that sample")
    await engine.sleep()
    slept = await _sample(engine, 0, prompt, sampling)
    expect(slept.ids == changed.ids, "an engine samples after sleep as before")
    await engine.publish(2, weights)
    back = await _sample(engine, 0, prompt, sampling)
    expect(back.ids == built.ids, "equal weights and keys sample equal tokens")
    stats = engine.stats()
    expect(isinstance(stats, EngineStats), f"stats returns EngineStats, not {type(stats).__name__}")
    expect(all(count >= 0 for count in stats.counts.values()), "counts are totals")


def _key(member: int) -> EpisodeKey:
    return EpisodeKey(run_seed=0, round=0, task=Task(env="test", seed=0), member=member)
