"""Who plays one episode: a policy that speaks tokens, or a chat endpoint that speaks messages."""

from dataclasses import dataclass

from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Trajectory
from turnwise.rollout.chat_episode import Chat, run_chat_episode
from turnwise.rollout.collect import Collector, MakeEnv, closing, making
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
        with making():
            env = self.make_env(key.task, key.member, key.attempt)
        async with closing(env, self.limits.timeout_s) as guarded:
            return await run_chat_episode(key, guarded, self.chat, self.limits)
