import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from episodes_for_tests import key_of, limits, task_of, trajectory_of, turn_of
from turnwise.concurrency.blocking import allow_interrupts
from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.core.images import image_hash
from turnwise.core.messages import ImagePart, Message, assistant, system, user
from turnwise.core.protocols import Observation, Sampling, StepResult
from turnwise.core.trajectory import Status, Stop, Trajectory
from turnwise.engine.openai.endpoint import ContextLengthError
from turnwise.engine.openai.messages import Reply
from turnwise.pictures.image_store import ImageStore
from turnwise.rollout.chat_episode import MESSAGES_KEY, USAGE_KEY, ChatRunner, count_sampled_tokens
from turnwise.rollout.episode import Limits
from virtual_time_for_tests import run_in_virtual_time

TASK = task_of("test")


class Counting:
    """Says how many turns are left; ends after so many. Notes that it was closed."""

    def __init__(self, turns: int = 3, *, slow_s: float = 0.0, silent: bool = False) -> None:
        self.left, self.slow_s, self.silent, self.closed = turns, slow_s, silent, False

    async def start(self) -> Observation:
        return Observation(messages=(system("rules"), user(f"{self.left} left")))

    async def step(self, action: Message) -> StepResult:
        await asyncio.sleep(self.slow_s)
        self.left -= 1
        said = () if self.silent else (user(f"{self.left} left"),)
        done = self.left == 0
        invalid = action.content == "?"
        return StepResult(messages=said, reward=0.5, terminated=done, success=done, invalid=invalid, info={"a": 1})

    async def close(self) -> None:
        self.closed = True


class Talker:
    """Answers in turn, or raises; notes all that it was asked."""

    def __init__(self, *answers: str | Exception, tokens: int | None = 5) -> None:
        self.answers, self.tokens = answers, tokens
        self.heard: list[list[Message]] = []
        self.samplings: list[Sampling] = []
        self.seeds: list[int] = []

    async def reply(self, messages: Sequence[Message], tools: Any, sampling: Sampling, seed: int) -> Reply:
        self.heard.append(list(messages))
        self.samplings.append(sampling)
        self.seeds.append(seed)
        answer = self.answers[min(len(self.heard), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        context = None if self.tokens is None else 10 * len(self.heard)
        return Reply(
            message=assistant(answer), stop=Stop.EOS, prompt_tokens=context, sampled_tokens=self.tokens, retries=2
        )


def play(env: Counting, chat: Talker, bounds: Limits | None = None, member: int = 0) -> Trajectory:
    player = ChatRunner(chat=chat, make_env=lambda task, member, attempt: env, limits=bounds or limits())
    return run_in_virtual_time(player.episode(key_of(TASK, member)))


def test_chat_episode_sends_and_records_the_whole_history() -> None:
    env, chat = Counting(), Talker("one", "?", "three")
    found = play(env, chat)
    assert [[message.content for message in each] for each in chat.heard] == [
        ["rules", "3 left"],
        ["rules", "3 left", "one", "2 left"],
        ["rules", "3 left", "one", "2 left", "?", "1 left"],
    ]
    assert (found.status, found.task, found.num_turns, found.total_reward) == (Status.SUCCEEDED, TASK, 3, 1.5)
    assert [turn.message.content for turn in found.turns] == ["one", "?", "three"]
    assert [turn.invalid for turn in found.turns] == [False, True, False]
    assert [turn.extends for turn in found.turns] == [False, True, True]
    assert [len(turn.info[MESSAGES_KEY]) for turn in found.turns] == [2, 1, 1], "what was new before each turn"
    assert found.turns[1].info == {
        "a": 1,
        MESSAGES_KEY: [{"role": "user", "content": "2 left"}],
        USAGE_KEY: {"prompt_tokens": 20, "sampled_tokens": 5, "retries": 2},
    }
    assert env.closed


def test_chat_episode_stores_images_once_and_refers_to_them(tmp_path: Path) -> None:
    class Camera(Counting):
        async def start(self) -> Observation:
            return Observation(messages=(user(["see", ImagePart(data=b"first")]),))

        async def step(self, action: Message) -> StepResult:
            step = await super().step(action)
            return replace(step, messages=(user([ImagePart(data=b"first"), ImagePart(data=b"second")]),))

    env, store = Camera(), ImageStore(tmp_path / "images")
    runner = ChatRunner(chat=Talker("x"), make_env=lambda task, member, attempt: env, limits=limits(), images=store)
    found = run_in_virtual_time(runner.episode(key_of(TASK)))
    first, second = image_hash(b"first"), image_hash(b"second")
    assert [[span.hash for span in turn.images] for turn in found.turns] == [[first], [first, second], [first, second]]
    assert sorted(file.name for file in (tmp_path / "images").iterdir()) == sorted([f"{first}.png", f"{second}.png"])


def test_chat_episode_has_no_trainable_tokens() -> None:
    found = play(Counting(), Talker("x"))
    assert all(turn.context_ids == turn.action_ids == turn.action_logprobs == () for turn in found.turns)
    assert count_sampled_tokens(found) == 15
    assert count_sampled_tokens(play(Counting(), Talker("x", tokens=None))) is None
    assert count_sampled_tokens(trajectory_of([turn_of([1], [2, 3])])) == 2


def test_chat_episode_seed_depends_on_turn_and_try_only() -> None:
    def seeds(member: int) -> list[int]:
        chat = Talker("x")
        play(Counting(), chat, member=member)
        return chat.seeds

    assert seeds(0) == seeds(0)
    assert len({*seeds(0), *seeds(1)}) == 6
    assert all(0 <= seed < 2**31 for seed in seeds(0))


def test_chat_episode_stops_at_the_context_limit() -> None:
    chat = Talker("x")
    found = play(Counting(9), chat, limits(max_new_tokens=8, max_tokens=30))
    # the endpoint counts 15, 25, 35 tokens after the turns: 8, then 8, then 5 were free
    assert (found.status, found.num_turns) == (Status.TRUNCATED_TOKENS, 3)
    assert [sampling.max_tokens for sampling in chat.samplings] == [8, 8, 5]


def test_chat_episode_stops_at_the_limit_without_token_usage() -> None:
    found = play(Counting(10**6), Talker("x" * 400, tokens=None), limits(max_tokens=1000))
    assert (found.status, found.num_turns) == (Status.TRUNCATED_TOKENS, 10)


def test_chat_episode_truncates_on_context_length_except_at_the_start() -> None:
    found = play(Counting(), Talker("one", ContextLengthError("too long")))
    assert (found.status, found.num_turns) == (Status.TRUNCATED_TOKENS, 1)
    with pytest.raises(UserError, match="The first observation is too long"):
        play(Counting(), Talker(ContextLengthError("too long")))


def test_chat_episode_fails_for_a_slow_environment_not_a_slow_endpoint() -> None:
    env = Counting(slow_s=5)
    with pytest.raises(EnvironmentFailure, match="took longer than"):
        play(env, Talker("x"), limits(timeout_s=0.02))
    assert env.closed

    class Slow(Talker):
        async def reply(self, *given: Any) -> Reply:
            await asyncio.sleep(0.05)
            return await super().reply(*given)

    assert play(Counting(), Slow("x"), limits(timeout_s=0.02)).status is Status.SUCCEEDED


def test_chat_episode_interrupts_a_blocking_environment() -> None:
    class Blocking(Counting):
        async def step(self, action: Message) -> StepResult:
            time.sleep(60)
            return await super().step(action)

    with pytest.raises(EnvironmentFailure, match=r"took longer than rollout\.timeout_s 0\.5 s"), allow_interrupts():
        play(Blocking(), Talker("x"), limits(timeout_s=0.5))


def test_chat_episode_closes_the_environment_if_the_endpoint_fails() -> None:
    env = Counting()
    with pytest.raises(InfrastructureFailure):
        play(env, Talker("x", InfrastructureFailure("gone")))
    assert env.closed


def test_chat_episode_sends_a_user_message_after_an_empty_observation() -> None:
    chat = Talker("x")
    play(Counting(silent=True), chat)
    assert [message.role for message in chat.heard[1]] == ["system", "user", "assistant", "user"]
