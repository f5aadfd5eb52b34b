"""Episodes whose turns are taken one at a time, by the policy or by a person."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from episodes_for_tests import context, key_of, limits, renderer, says, task_of
from turnwise.core.errors import UserError
from turnwise.core.messages import system, user
from turnwise.core.protocols import Completion, Env, Sampling, Session
from turnwise.core.trajectory import Status, Trajectory
from turnwise.engine.scripted import ScriptedEngine
from turnwise.envs.registry import load_spec
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.render.renderer import Renderer
from turnwise.rollout.context import Context, FullContext
from turnwise.rollout.context_modes import WindowContext
from turnwise.rollout.episode import Limits, run_episode
from turnwise.rollout.stepped_episode import BY_HAND, SteppedEpisode

LAKE = task_of("frozen_lake", size=4)
KEY = key_of(LAKE)
LEFT, RIGHT = "<answer>left</answer>", "<answer>right</answer>"


class Witness:
    """Passes on to a session and keeps the ids of its context."""

    sampling_s = 0.0

    def __init__(self, session: Session) -> None:
        self._session = session
        self.ids: list[int] = []

    async def generate(self, ids: Sequence[int], sampling: Sampling, restart: bool = False) -> Completion:
        if restart:
            self.ids.clear()
        completion = await self._session.generate(ids, sampling, restart)
        self.ids += [*ids, *completion.ids]
        return completion


def step_through(
    steps: Callable[[SteppedEpisode], Awaitable[None]],
    *,
    policy: ScriptedEngine | None = None,
    bounds: Limits | None = None,
    shown: Context | None = None,
    rendered_by: Renderer | None = None,
    is_chat: bool = False,
    prefix: str = "",
) -> tuple[Trajectory, list[int]]:
    """Return the episode after these steps, and the ids that the session has read or sampled."""

    async def run() -> tuple[Trajectory, list[int]]:
        env: Env | None = None if is_chat else load_spec("frozen_lake").make(LAKE)
        async with (policy or says(LEFT)).open(KEY) as session:
            witness = Witness(session)
            episode = SteppedEpisode(
                env=env,
                session=witness,
                context=shown or context(),
                limits=bounds or limits(),
                renderer=rendered_by or renderer(),
                prefix=prefix,
            )
            await episode.start()
            await steps(episode)
            return episode.build(KEY), witness.ids

    return asyncio.run(run())


def all_ids(trajectory: Trajectory) -> list[int]:
    """Return the ids of the last segment."""
    *_, segment = trajectory.segments()
    return [token for turn in segment.turns for token in (*turn.context_ids, *turn.action_ids)]


def test_sampled_turns_are_those_of_a_whole_episode() -> None:
    async def sample_all(episode: SteppedEpisode) -> None:
        while episode.status.ongoing:
            await episode.sample()

    async def whole() -> Trajectory:
        async with says(LEFT, RIGHT).open(KEY) as session:
            return await run_episode(KEY, load_spec("frozen_lake").make(LAKE), session, context(), limits())

    stepped, _ = step_through(sample_all, policy=says(LEFT, RIGHT))
    expected = asyncio.run(whole())
    assert replace(stepped, timings={}) == replace(expected, timings={})
    assert stepped.status is not Status.ONGOING


@pytest.mark.parametrize("window", [0, 1, 2])
def test_policy_reads_the_turns_that_a_person_took(window: int) -> None:
    shown = WindowContext(renderer(), turns=window, keep_opening=False) if window else context()

    async def mixed(episode: SteppedEpisode) -> None:
        await episode.reply(LEFT)
        await episode.sample()
        await episode.reply(LEFT)
        await episode.reply(LEFT)
        await episode.sample()

    trajectory, read = step_through(mixed, shown=shown)
    assert len(list(trajectory.segments())) == (5 - window if window else 1)
    assert read == all_ids(trajectory)
    assert [BY_HAND in turn.info for turn in trajectory.turns] == [True, False, True, True, False]
    assert [bool(turn.action_logprobs) for turn in trajectory.turns] == [False, True, False, False, True]
    assert trajectory.turns[0].message.content == LEFT


def test_too_long_reply_is_refused_and_the_episode_goes_on() -> None:
    async def try_long(episode: SteppedEpisode) -> None:
        with pytest.raises(UserError, match="Write a shorter one"):
            await episode.reply("word " * 3000)
        await episode.reply(LEFT)

    trajectory, _ = step_through(try_long, bounds=limits(max_tokens=1000))
    assert len(trajectory.turns) == 1


@pytest.mark.parametrize(("prefix", "content"), [("<think>", f"<think></think>{LEFT}"), ("Now: ", f"Now: {LEFT}")])
def test_reply_gets_the_prefix_that_the_model_has(prefix: str, content: str) -> None:
    async def reply(episode: SteppedEpisode) -> None:
        await episode.reply(LEFT)

    shown = Renderer(tiny_tokenizer(), prefix=prefix)
    trajectory, _ = step_through(reply, shown=FullContext(shown), rendered_by=shown, prefix=prefix)
    assert trajectory.turns[0].message.content == content
    assert not trajectory.turns[0].invalid


def test_turn_after_the_end_is_refused() -> None:
    async def play_on(episode: SteppedEpisode) -> None:
        while episode.status.ongoing:
            await episode.reply(LEFT)
        assert episode.pending is None
        with pytest.raises(UserError, match="The episode is over"):
            await episode.sample()

    step_through(play_on)


def test_conversation_waits_for_the_person() -> None:
    async def talk(episode: SteppedEpisode) -> None:
        assert not episode.has_started
        with pytest.raises(UserError, match="Write a message first"):
            await episode.sample()
        await episode.say((system("Be short."), user("Hello")))
        with pytest.raises(UserError, match="the model's turn"):
            await episode.say((user("Hello?"),))
        await episode.sample()
        assert episode.pending is None
        await episode.say((user("And now?"),))
        await episode.sample()

    trajectory, read = step_through(talk, is_chat=True, policy=says("Hi.", "Bye."))
    assert [turn.message.content for turn in trajectory.turns] == ["Hi.", "Bye."]
    assert read == all_ids(trajectory)
    text = renderer().decode(read)
    assert text.index("Be short.") < text.index("Hello") < text.index("Hi.") < text.index("And now?")


def test_conversation_ends_at_the_limit_of_tokens() -> None:
    async def talk(episode: SteppedEpisode) -> None:
        await episode.say((user("word " * 300),))

    trajectory, _ = step_through(talk, is_chat=True, bounds=limits(max_tokens=20))
    assert trajectory.status is Status.TRUNCATED_TOKENS
