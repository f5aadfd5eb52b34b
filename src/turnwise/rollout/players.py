"""Who plays one episode: a policy that speaks tokens, or a chat endpoint that speaks messages."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Trajectory
from turnwise.rollout.chat_episode import Chat, run_chat_episode
from turnwise.rollout.collect import Collector, GuardedEnv, MakeEnv, making
from turnwise.rollout.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPlayer:
    """Plays as the collector does, but one episode when it is asked for."""

    collector: Collector

    async def episode(self, key: EpisodeKey) -> Trajectory:
        (trajectory,) = await self.collector.episodes([key])
        return trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPlayer:
    chat: Chat
    make_env: MakeEnv
    limits: Limits

    async def episode(self, key: EpisodeKey) -> Trajectory:
        async with self._env(key) as env:
            return await run_chat_episode(key, env, self.chat, self.limits)

    @asynccontextmanager
    async def _env(self, key: EpisodeKey) -> AsyncIterator[GuardedEnv]:
        """The environment behind the boundary of failures, closed however the episode ends."""
        with making():
            env = GuardedEnv(self.make_env(key.task, key.member, key.attempt), self.limits.timeout_s)
        try:
            yield env
        except BaseException:
            with suppress(EnvironmentFailure, InfrastructureFailure):  # the first failure is the one to tell
                await env.close()
            raise
        await env.close()
