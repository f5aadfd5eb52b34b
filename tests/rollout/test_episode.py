import asyncio
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes_for_tests import context, end_id, key_of, limits, renderer, says, spoken, task_of
from turnwise.concurrency.blocking import allow_interrupts
from turnwise.core.errors import InfrastructureFailure, RewardFailure
from turnwise.core.messages import Message, system, user
from turnwise.core.protocols import Completion, Env, Observation, Sampling, Session, StepResult
from turnwise.core.trajectory import Status, Stop, Trajectory
from turnwise.data.samples import build_samples
from turnwise.engine.scripted import ScriptedEngine, ScriptedSession
from turnwise.envs.registry import load_spec
from turnwise.models.loading.tiny import tiny_vlm_model
from turnwise.models.vision.encoder import image_encoder
from turnwise.render.codec import Codec
from turnwise.render.renderer import Renderer
from turnwise.rewards.factory import build_rubric
from turnwise.rewards.rubric import Rubric, Submission
from turnwise.rewards.scoring import score_submission
from turnwise.rewards.services import RewardServices
from turnwise.rollout.clock import EpisodeClock
from turnwise.rollout.context import ContextState, FullContext
from turnwise.rollout.episode import Limits, run_episode
from virtual_time_for_tests import block, follow_virtual_time, run_in_virtual_time
from vision_models_for_tests import plain_image

LAKE = task_of("frozen_lake", size=4)
FAR = task_of("frozen_lake", 12, size=4)


class Witness:
    """Passes on to a session and keeps what it was asked."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.ids: list[int] = []
        self.budgets: list[int] = []

    @property
    def sampling_s(self) -> float:
        return self._session.sampling_s

    async def generate(self, ids: Sequence[int], sampling: Sampling, restart: bool = False) -> Completion:
        if restart:
            self.ids.clear()
        completion = await self._session.generate(ids, sampling, restart)
        self.ids += [*ids, *completion.ids]
        self.budgets.append(sampling.max_tokens)
        return completion


def play(
    env: Env, policy: ScriptedEngine, bounds: Limits, shown: FullContext | None = None
) -> tuple[Trajectory, Witness]:
    async def episode() -> tuple[Trajectory, Witness]:
        async with policy.open(key_of(LAKE)) as session:
            witness = Witness(session)
            return await run_episode(key_of(LAKE), env, witness, shown or context(), bounds), witness

    return asyncio.run(episode())


class TalkingEnv:
    """Never ends, and says the same after every turn; `hangs_at` turns in, it no longer answers."""

    def __init__(self, hangs_at: int | None = None) -> None:
        self._turn, self._hangs_at = 0, hangs_at

    async def start(self) -> Observation:
        await self._hang_if_due()
        return Observation(messages=(system("Talk."), user("Begin.")))

    async def step(self, action: Message) -> StepResult:
        self._turn += 1
        await self._hang_if_due()
        return StepResult(messages=(user("Go on."),), reward=1.0)

    async def close(self) -> None:
        pass

    async def _hang_if_due(self) -> None:
        if self._turn == self._hangs_at:
            await asyncio.Event().wait()


def test_turns_contain_exactly_the_ids_of_the_session() -> None:
    answers = ("<answer>Left</answer>", "no answer at all", "<think>hm</think><answer>Up || Left</answer>")
    trajectory, witness = play(load_spec("frozen_lake").make(LAKE), says(*answers), limits())
    assert [each for turn in trajectory.turns for each in (*turn.context_ids, *turn.action_ids)] == witness.ids
    assert [list(turn.action_ids) for turn in trajectory.turns[:3]] == [spoken(answer) for answer in answers]
    assert [turn.message.content for turn in trajectory.turns[:3]] == list(answers)
    assert [turn.invalid for turn in trajectory.turns[:3]] == [False, True, False]
    assert [turn.extends for turn in trajectory.turns] == [False, True, True, True, True]
    assert trajectory.status is Status.TRUNCATED_TURNS
    spans = trajectory.turns[2].spans
    assert [(span.name, bytes(trajectory.turns[2].action_ids[span.start : span.end])) for span in spans] == [
        ("think", b"hm"),
        ("answer", b"Up || Left"),
    ]


def test_mask_is_one_on_sampled_tokens_only() -> None:
    trajectory, witness = play(load_spec("frozen_lake").make(LAKE), says("<answer>Left</answer>", "what?"), limits())
    (sample,) = build_samples([trajectory])
    assert sample.ids.tolist() == witness.ids
    sampled = [token for turn in trajectory.turns for token in turn.action_ids]
    assert sample.ids[sample.mask].tolist() == sampled
    text = renderer().decode(sample.ids[~sample.mask].tolist())
    assert "<|assistant|>" in text and "Left</answer>" not in text and "what?" not in text


def test_success_and_rewards_come_from_the_environment() -> None:
    env = load_spec("frozen_lake").make(FAR)
    asyncio.run(env.start())
    way = env.env.solve()
    assert way is not None and len(way) > 1
    policy = says(*(f"<answer>{move}</answer>" for move in way))
    trajectory, _ = play(load_spec("frozen_lake").make(FAR), policy, limits())
    assert trajectory.status is Status.SUCCEEDED
    assert trajectory.turn_rewards == (0.0,) * (len(way) - 1) + (1.0,)
    assert trajectory.turns[-1].picture is not None


def test_run_episode_bounds_the_last_turn_by_the_remaining_tokens() -> None:
    endless = ScriptedEngine(lambda key, turn, ids: [65] * 1000, [end_id()])
    start = len(context().start(asyncio.run(TalkingEnv().start())).ids)
    trajectory, witness = play(TalkingEnv(), endless, limits(max_new_tokens=30, max_tokens=start + 50))
    first, second = trajectory.turns
    assert [len(first.action_ids), len(first.context_ids)] == [30, start]
    assert len(second.action_ids) == 20 - len(second.context_ids) == witness.budgets[1]
    assert len(witness.ids) == start + 50
    assert second.stop is Stop.LENGTH
    assert trajectory.status is Status.TRUNCATED_TOKENS


class ShowingEnv(TalkingEnv):
    """Shows an image of 16 tokens before every turn."""

    async def start(self) -> Observation:
        return Observation(messages=(system("Talk."), user(["Begin.", plain_image((200, 0, 0), size=32)])))

    async def step(self, action: Message) -> StepResult:
        return StepResult(messages=(user(["Go on.", plain_image((0, 0, 200), size=32)]),), reward=1.0)


def test_image_tokens_count_towards_the_limit_of_an_episode() -> None:
    encoder = image_encoder(tiny_vlm_model())
    assert encoder is not None
    seeing = FullContext(Renderer(encoder.processor.processor.tokenizer, images=encoder.processor))
    endless = ScriptedEngine(lambda key, turn, ids: [65] * 1000, [end_id()])
    first = len(context().start(asyncio.run(TalkingEnv().start())).ids) + 16
    second = len(renderer().extend([user("Go on.")], Stop.LENGTH)) + 16
    trajectory, witness = play(
        ShowingEnv(), endless, limits(max_new_tokens=30, max_tokens=first + 30 + second + 7), seeing
    )
    assert witness.budgets == [30, 7]
    assert trajectory.status is Status.TRUNCATED_TOKENS
    unseen, witness = play(ShowingEnv(), endless, limits(max_tokens=first), seeing)
    assert (unseen.status, witness.budgets) == (Status.TRUNCATED_TOKENS, [])


@settings(max_examples=50)
@given(max_tokens=st.integers(1, 200), length=st.integers(1, 70), max_new_tokens=st.integers(1, 60))
def test_context_never_exceeds_its_limit(max_tokens: int, length: int, max_new_tokens: int) -> None:
    policy = ScriptedEngine(lambda key, turn, ids: [65] * (length - 1) + [end_id()], [end_id()])
    bounds = limits(max_new_tokens=max_new_tokens, max_tokens=max_tokens)
    trajectory, witness = play(TalkingEnv(), policy, bounds)
    assert trajectory.status is Status.TRUNCATED_TOKENS
    assert len(witness.ids) <= max_tokens
    assert all(1 <= len(turn.action_ids) <= max_new_tokens for turn in trajectory.turns)


def test_run_episode_truncates_before_the_first_turn_if_the_prompt_is_long() -> None:
    trajectory, witness = play(TalkingEnv(), says("hi"), limits(max_tokens=3))
    assert (trajectory.status, trajectory.turns, witness.ids) == (Status.TRUNCATED_TOKENS, (), [])


@pytest.mark.parametrize("hangs_at", [0, 2])
def test_hanging_environment_raises_infrastructure_failure(hangs_at: int) -> None:
    with pytest.raises(
        InfrastructureFailure, match=r"^Timed out after rollout\.timeout_s 0\.1 s, waiting for the environment"
    ):
        play(TalkingEnv(hangs_at), says("hi"), limits(timeout_s=0.1))


def test_hanging_reward_is_reported_by_name() -> None:
    async def slow(answered: Submission) -> float:
        await asyncio.Event().wait()
        return 1.0

    async def quick(answered: Submission) -> float:
        return 1.0

    class Judged(TalkingEnv):
        async def step(self, message: Message) -> StepResult:
            rubric = Rubric(parts={"form": quick, "judge": slow}, weights={"form": 1.0, "judge": 1.0})
            await score_submission(rubric, Submission(question="", answer="", row={}))
            return await super().step(message)

    with pytest.raises(
        InfrastructureFailure, match=r"^Timed out after rollout\.timeout_s 0\.1 s, waiting for the reward judge"
    ):
        play(Judged(), says("hi"), limits(timeout_s=0.1))


class StuckSession:
    """Answers so many turns, then samples without end."""

    def __init__(self, turns: int = 0) -> None:
        self._turns, self._stuck_since = turns, math.inf

    @property
    def sampling_s(self) -> float:
        return max(0.0, time.monotonic() - self._stuck_since)

    async def generate(self, ids: Sequence[int], sampling: Sampling, restart: bool = False) -> Completion:
        self._turns -= 1
        if self._turns < 0:
            self._stuck_since = time.monotonic()
            await asyncio.Event().wait()
        ids = tuple(spoken("hi"))
        return Completion(ids=ids, logprobs=(0.0,) * len(ids), stop=Stop.EOS, temperature=1.0)


def test_blocking_rubric_function_is_interrupted() -> None:
    """Parts of a rubric run in tasks of their own, which the limit reaches too."""

    def blocks(answer: str, row: object) -> float:
        time.sleep(60)
        return 1.0

    class Judged(TalkingEnv):
        async def step(self, message: Message) -> StepResult:
            rubric = build_rubric("mine.py:blocks", lambda given: blocks, RewardServices())
            await score_submission(rubric, Submission(question="", answer="", row={}))
            return await super().step(message)

    expected = (
        r'^the reward blocks: the reward "mine\.py:blocks", .* ran for 0\.5 s without a pause, at test_episode\.py:\d+'
    )
    with pytest.raises(RewardFailure, match=expected), allow_interrupts():
        play(Judged(), says("hi"), limits(timeout_s=0.5))


def test_run_episode_keeps_earlier_turns_if_the_engine_hangs() -> None:
    bounds = limits(timeout_s=0.5)
    trajectory = asyncio.run(run_episode(key_of(LAKE), TalkingEnv(), StuckSession(turns=2), context(), bounds))
    assert trajectory.status is Status.TRUNCATED_TIME and trajectory.status.cut_short
    assert [turn.reward for turn in trajectory.turns] == [1.0, 1.0]


def test_run_episode_truncates_if_the_engine_hangs_in_the_first_turn() -> None:
    trajectory = asyncio.run(run_episode(key_of(LAKE), TalkingEnv(), StuckSession(), context(), limits(timeout_s=0.5)))
    assert (trajectory.status, trajectory.turns) == (Status.TRUNCATED_TIME, ())


def test_run_episode_never_charges_the_agent_for_waits() -> None:
    """The session is answered late because others are served first: that time is not charged to it."""

    class Queued(ScriptedSession):
        async def generate(self, ids: Sequence[int], sampling: Sampling, restart: bool = False) -> Completion:
            if restart:
                await asyncio.sleep(1.3)
            return await super().generate(ids, sampling, restart)

    session = Queued(key_of(LAKE), lambda key, turn, ids: spoken("hi"), frozenset([end_id()]))
    bounds = limits(timeout_s=1.0, max_tokens=60)
    trajectory = asyncio.run(run_episode(key_of(LAKE), TalkingEnv(), session, context(), bounds))
    assert trajectory.status is Status.TRUNCATED_TOKENS and trajectory.turns


@pytest.mark.parametrize(
    ("sampling_s", "outside_s", "expired"), [(59, 59, None), (61, 59, "agent"), (61, 61, "environment")]
)
def test_clock_limits_agent_and_environment_separately(
    sampling_s: float, outside_s: float, expired: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    for module in ("blocking", "loop_clock"):
        monkeypatch.setattr(f"turnwise.concurrency.{module}.time", SimpleNamespace(monotonic=lambda: now[0]))
    session = ScriptedSession(key_of(LAKE), lambda key, turn, ids: [], frozenset())
    session.sampling_s = sampling_s
    clock = EpisodeClock(session, 60.0)

    async def step() -> None:
        now[0] += outside_s
        clock._check()
        await asyncio.sleep(0)

    async def scenario() -> None:
        async with clock.limit():
            await clock.run_outside(step(), "it")

    with nullcontext() if expired is None else pytest.raises((TimeoutError, InfrastructureFailure)):
        asyncio.run(scenario())
    assert clock.expired == expired


class TimedEnv(TalkingEnv):
    """Takes some seconds for each of its three steps."""

    def __init__(self, seconds: float, *, blocks: bool) -> None:
        super().__init__()
        self._seconds, self._blocks = seconds, blocks

    async def step(self, action: Message) -> StepResult:
        await asyncio.sleep(0 if self._blocks else self._seconds)
        if self._blocks:
            block(self._seconds)
        return replace(await super().step(action), terminated=self._turn == 3)


def play_together(*envs: Env, timeout_s: float) -> list[Trajectory | BaseException]:
    async def episode(env: Env) -> Trajectory:
        async with says("hi").open(key_of(LAKE)) as session:
            return await run_episode(key_of(LAKE), env, session, context(), limits(timeout_s=timeout_s))

    async def scenario() -> list[Trajectory | BaseException]:
        return await asyncio.gather(*map(episode, envs), return_exceptions=True)

    return run_in_virtual_time(scenario())


def test_run_episode_never_charges_an_environment_for_others_that_block(monkeypatch: pytest.MonkeyPatch) -> None:
    follow_virtual_time(monkeypatch)
    quick = TimedEnv(0.01, blocks=False)
    blocking = [TimedEnv(0.3, blocks=True) for _ in range(5)]
    found = play_together(quick, *blocking, timeout_s=1.0)
    assert [each.num_turns if isinstance(each, Trajectory) else each for each in found] == [3] * 6


def test_run_episode_charges_an_environment_for_its_own_blocking(monkeypatch: pytest.MonkeyPatch) -> None:
    """No single call takes too long, and the error reports the last one and the total."""
    follow_virtual_time(monkeypatch)
    _, found = play_together(TimedEnv(0.01, blocks=False), TimedEnv(0.4, blocks=True), timeout_s=1.0)
    assert isinstance(found, InfrastructureFailure)
    assert str(found).startswith(
        "the environment frozen_lake took 0.4 s. The episode's environment and hooks took 1.2 s in total, "
    )


def test_run_episode_blames_the_renderer_where_there_is_no_summary_hook() -> None:
    class Slow(FullContext):
        async def next(self, *given: Any) -> ContextState:
            time.sleep(60)
            return await super().next(*given)

    async def episode() -> Trajectory:
        async with says("hi").open(key_of(LAKE)) as session:
            return await run_episode(key_of(LAKE), TalkingEnv(), session, Slow(renderer()), limits(timeout_s=0.5))

    with pytest.raises(InfrastructureFailure, match=r"^the renderer ran for .* without a pause"), allow_interrupts():
        asyncio.run(episode())


class BlockingEnv(TalkingEnv):
    """Its second step blocks the event loop."""

    async def step(self, action: Message) -> StepResult:
        result = await super().step(action)
        if self._turn == 2:
            time.sleep(60)
        return result


def test_run_episode_interrupts_an_environment_that_blocks() -> None:
    expected = r"^the environment frozen_lake ran .* without a pause, at test_episode\.py:\d+\. .* rollout\.timeout_s"
    with pytest.raises(InfrastructureFailure, match=expected), allow_interrupts():
        play(BlockingEnv(), says("hi"), limits(timeout_s=0.5))


def test_run_episode_refuses_late_results_where_nothing_can_interrupt() -> None:
    """In another thread there is no signal: a step that took too long has failed when it returns."""

    class Late(TalkingEnv):
        async def step(self, action: Message) -> StepResult:
            time.sleep(0.6)
            return StepResult(terminated=True, success=True)

    expected = r"^the environment frozen_lake took .* s\. .* in total, more than rollout\.timeout_s 0\.5"
    with ThreadPoolExecutor(1) as thread, pytest.raises(InfrastructureFailure, match=expected):
        thread.submit(play, Late(), says("hi"), limits(timeout_s=0.5)).result()


@pytest.mark.parametrize("turns", [0, 2])
def test_observation_that_cannot_fit_is_never_tokenised(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten megabytes end the episode as any observation that is too long does."""
    huge = user("word " * 2_000_000)

    class Huge(TalkingEnv):
        async def start(self) -> Observation:
            opening = await super().start()
            return opening if turns else replace(opening, messages=(huge,))

        async def step(self, action: Message) -> StepResult:
            result = await super().step(action)
            return result if self._turn < turns else replace(result, messages=(huge,))

    encoded: list[int] = []
    encode = Codec._ids

    def count(codec: Codec, text: str, spaced: bool) -> list[int]:
        encoded.append(len(text))
        return encode(codec, text, spaced)

    monkeypatch.setattr(Codec, "_ids", count)
    trajectory, _ = play(Huge(), says("hi"), limits())
    assert (trajectory.status, len(trajectory.turns)) == (Status.TRUNCATED_TOKENS, turns)
    assert max(encoded, default=0) < 1000
