import asyncio
import multiprocessing
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from turnwise.core.errors import UserError
from turnwise.core.protocols import Completion, Sampling
from turnwise.core.trajectory import Stop
from turnwise.engine.vllm.engine import VllmEngine
from vllm_engines_for_tests import build_engine, key, max_error, renderer, wide_model

TOLERANCE = 2e-5
CONTEXT = list(range(5, 60))
OLD, NEW = wide_model(0), wide_model(1)


@pytest.fixture(scope="module")
def engine(runner: asyncio.Runner) -> Iterator[VllmEngine]:
    yield build_engine(OLD)


async def turn(engine: VllmEngine, sampling: Sampling, member: int = 0) -> Completion:
    async with engine.open(key(member)) as session:
        return await session.generate(CONTEXT, sampling)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_logprobs_are_the_models_own(runner: asyncio.Runner, engine: VllmEngine, temperature: float) -> None:
    async def scenario() -> list[Completion]:
        sampling = Sampling(max_tokens=24, temperature=temperature)
        return await asyncio.gather(*(turn(engine, sampling, member) for member in range(6)))

    runner.run(engine.publish(0, OLD))
    found = runner.run(scenario())
    assert max(max_error(OLD, CONTEXT, each) for each in found) < TOLERANCE
    assert {each.policy_versions for each in found} == {(0,) * len(each.ids) for each in found}
    assert len({each.ids for each in found}) == (1 if temperature == 0 else 6)


def test_more_prompt_tokens_than_fit_one_pass(runner: asyncio.Runner, engine: VllmEngine) -> None:
    """vLLM prefills 2,048 tokens at a time. On a CPU it dies if a prompt of a request with a seed is cut there."""
    prompts = [[5 + member, *(5 + number % 400 for number in range(899))] for member in range(4)]

    async def long_turn(member: int) -> Completion:
        async with engine.open(key(member)) as session:
            return await session.generate(prompts[member], Sampling(max_tokens=4))

    async def scenario() -> list[Completion]:
        return await asyncio.gather(*map(long_turn, range(4)))

    runner.run(engine.publish(0, OLD))
    for prompt, found in zip(prompts, runner.run(scenario()), strict=True):
        assert max_error(OLD, prompt, found) < TOLERANCE
    assert engine.stats().counts["restarts"] == 0


def test_later_turns_extend_the_context(runner: asyncio.Runner, engine: VllmEngine) -> None:
    async def scenario() -> tuple[Completion, Completion]:
        async with engine.open(key()) as session:
            first = await session.generate(CONTEXT, Sampling(max_tokens=40))
            return first, await session.generate([7, 8, 9], Sampling(max_tokens=20))

    first, second = runner.run(scenario())
    assert max_error(OLD, [*CONTEXT, *first.ids, 7, 8, 9], second) < TOLERANCE


def test_equal_episodes_sample_equal_tokens(runner: asyncio.Runner, engine: VllmEngine) -> None:
    first, again = (runner.run(turn(engine, Sampling(max_tokens=24))) for _ in range(2))
    assert first.ids == again.ids


def test_prompt_that_vllm_changed_is_refused(
    runner: asyncio.Runner, engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.run(turn(engine, Sampling(max_tokens=2)))
    llm: Any = engine._states[0].replica._llm  # type: ignore[attr-defined]
    plain = llm.generate

    def generate_from_more(prompt: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        return plain(prompt | {"prompt_token_ids": [*prompt["prompt_token_ids"], 9]}, *arguments, **options)

    monkeypatch.setattr(llm, "generate", generate_from_more)
    with pytest.raises(UserError, match="changed the tokens of a prompt"):
        runner.run(turn(engine, Sampling(max_tokens=2)))


def test_stop_string_cuts_the_turn_at_its_last_token(runner: asyncio.Runner, engine: VllmEngine) -> None:
    whole = runner.run(turn(engine, Sampling(max_tokens=24), member=3))
    decode = renderer().decode
    text = decode(list(whole.ids[5:7]))
    found = runner.run(turn(engine, Sampling(max_tokens=24, stop=(text,)), member=3))
    assert found.stop is Stop.STRING
    assert found.ids == whole.ids[: len(found.ids)]
    assert text in decode(list(found.ids)) and text not in decode(list(found.ids[:-1]))
    assert len(found.logprobs) == len(found.policy_versions) == len(found.ids)
    assert max_error(OLD, CONTEXT, found) < TOLERANCE


def test_published_weights_are_used_at_once(runner: asyncio.Runner, engine: VllmEngine) -> None:
    async def scenario() -> tuple[Completion, Completion]:
        async with engine.open(key()) as session:
            first = await session.generate(CONTEXT, Sampling(max_tokens=20))
            await engine.publish(1, NEW)
            return first, await session.generate([7, 8, 9], Sampling(max_tokens=20))

    runner.run(engine.publish(0, OLD))
    first, second = runner.run(scenario())
    assert max_error(OLD, CONTEXT, first) < TOLERANCE
    assert max_error(NEW, [*CONTEXT, *first.ids, 7, 8, 9], second) < TOLERANCE, "the prefix cache is not stale"
    assert set(second.policy_versions) == {1}


def test_request_continues_with_weights_published_meanwhile(runner: asyncio.Runner, engine: VllmEngine) -> None:
    async def scenario() -> list[Completion]:
        turns = [asyncio.create_task(turn(engine, Sampling(max_tokens=400), member)) for member in range(4)]
        await asyncio.sleep(0.3)
        await engine.publish(3, NEW)
        return await asyncio.gather(*turns)

    runner.run(engine.publish(2, OLD))
    changed = 0
    for found in runner.run(scenario()):
        before = found.policy_versions.count(2)
        assert found.policy_versions == (2,) * before + (3,) * (len(found.ids) - before)
        if before:
            assert max_error(OLD, CONTEXT, found, slice(before)) < TOLERANCE
        if before < len(found.ids):
            assert max_error(NEW, CONTEXT, found, slice(before, None)) < TOLERANCE
        changed += 0 < before < len(found.ids)
    assert changed, "no request was running: raise max_tokens"


def test_killed_engine_is_restarted_with_the_latest_weights(
    runner: asyncio.Runner, engine: VllmEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> list[Completion]:
        turns = [asyncio.create_task(turn(engine, Sampling(max_tokens=200), member)) for member in range(3)]
        await asyncio.sleep(0.3)
        for process in _engine_processes():
            os.kill(process.pid, signal.SIGKILL)
        return await asyncio.gather(*turns)

    runner.run(engine.publish(9, NEW))
    for found in runner.run(scenario()):
        assert max_error(NEW, CONTEXT, found) < TOLERANCE
        assert set(found.policy_versions) == {9}
    assert caplog.text.count("was restarted with the weights of version 9") == 1
    assert engine.stats().counts["restarts"] == 1


def _engine_processes() -> list[Any]:
    return [process for process in multiprocessing.active_children() if process.pid]
