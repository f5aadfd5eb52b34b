"""Episodes of agents: an agent's run, whose model calls are the turns of a trajectory.

The reward is what the reward function gives, else what the agent returns, else what it posts to the gateway; an agent
without any is a failure, never a reward of 0.
"""

import asyncio
import atexit
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from turnwise.concurrency.blocking import allow_interrupts, blocking_limit
from turnwise.concurrency.context_values import set_in_block
from turnwise.config.schema import Config
from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, RewardFailure, UserError
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Status, Trajectory
from turnwise.envs.agent.settings import AgentSettings
from turnwise.envs.text_env import Outcome
from turnwise.gateway.agents import Access, Agent, AgentExit, run_agent
from turnwise.rewards.functions import call_reward_function, not_a_number, to_float
from turnwise.rollout.collect import CollectedGroups, GroupCollector
from turnwise.rollout.episode import Limits
from turnwise.sandbox.scratch_folders import create_base, remove_abandoned_bases, remove_base

if TYPE_CHECKING:  # its packages are optional
    from turnwise.gateway.capture import GatewayEpisode
    from turnwise.gateway.server import Gateway

AGENTS_FOLDER = "turnwise-agents-"
MAX_RECORDED = 4000
"""Characters of a program's output that are recorded with the episode."""

AgentReward = Callable[[Any, "AgentResult"], Any]
"""Reward of (task, result): a number or an Outcome; may be async."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """Result of an agent's run, for a reward function of (task, result)."""

    trajectory: Trajectory
    """The recorded model calls, one turn each. Their rewards are those that the agent posted."""
    folder: Path
    """Working folder of the episode; it is removed afterwards."""
    value: Any = None
    """Value that the function returned; None for a command."""
    output: str = ""
    """End of a command's standard output."""


class OpenEpisode(Protocol):
    """An episode that an agent is running."""

    @property
    def access(self) -> Access: ...

    async def finish(self, ended: AgentExit, agent: Agent, task: Any, folder: Path) -> Trajectory:
        """Close the episode and return its trajectory. Raises the failure that the end is."""
        ...

    async def close(self) -> None:
        """Close the episode, if it is not closed."""
        ...


class EpisodeHost(Protocol):
    """Opens episodes: in this process (`RecordedEpisodes`), or on a server (`RemoteEpisodes`)."""

    async def open(self, key: EpisodeKey) -> OpenEpisode: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCollector(GroupCollector):
    """Episodes of an agent that calls the policy through the gateway."""

    host: EpisodeHost
    agent: Agent
    find_task: Callable[[Task], Any]
    """Returns what the agent gets as its task."""
    timeout_s: float | None
    """None: the agent itself keeps to its time limit."""

    async def episodes(self, keys: Sequence[EpisodeKey]) -> Sequence[Trajectory]:
        (key,) = keys
        task = self.find_task(key.task)
        with tempfile.TemporaryDirectory(dir=agents_folder(), ignore_cleanup_errors=True) as name:
            folder, episode = Path(name), await self.host.open(key)
            try:
                ended = await run_agent(self.agent, episode.access, task, folder, self.timeout_s)
                return [await episode.finish(ended, self.agent, task, folder)]
            finally:
                await episode.close()


@cache
def agents_folder() -> str:
    """Return this process's folder, in which each running episode of an agent has its own; removed at exit.

    Folders of killed processes are removed first. A process locks its folder as long as it lives.
    """
    remove_abandoned_bases(AGENTS_FOLDER)
    base, lock = create_base(AGENTS_FOLDER)
    atexit.register(_remove_agents_folder, os.getpid(), base, lock)
    return base


def _remove_agents_folder(owner: int, base: str, lock: int) -> None:
    if os.getpid() == owner:  # not a forked process
        remove_base(base, lock)


class AgentRun(Protocol):
    """An open run that is trained on the episodes of agents."""

    config: Config
    access: Access
    """Access for calls that are not trained on (`Trainer.client`)."""

    @property
    def path(self) -> Path: ...
    @property
    def steps_done(self) -> int: ...
    def collector(self, *, evaluation: bool) -> AgentCollector:
        """Return the collector of training or evaluation episodes, without its agent."""
        ...

    async def step(self, collected: CollectedGroups) -> dict[str, Any]:
        """Train on the groups and return the metrics."""
        ...

    def save(self) -> Path:
        """Save a checkpoint and return its folder."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEpisodes:
    """Episodes of a gateway, and how their ends become trajectories."""

    gateway: "Gateway"
    limits: Limits
    settings: AgentSettings
    reward: AgentReward | None = None
    """Reward of (task, result); None: what the agent returns or posts."""
    is_scored_later: bool = False
    """True if reward functions or judges score the trajectories: then the agent need not give a reward."""

    async def open(self, key: EpisodeKey) -> "RecordedEpisode":
        episode = await self.gateway.open_episode(key, self.limits)
        episode.takes_rewards = self.settings.takes_rewards
        return RecordedEpisode(self, key, episode)


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """An open episode of the gateway."""

    host: RecordedEpisodes
    key: EpisodeKey
    episode: "GatewayEpisode"
    began: float = field(default_factory=time.perf_counter)

    @property
    def access(self) -> Access:
        gateway = self.host.gateway
        return Access(url=gateway.url, key=self.episode.bearer, socket=gateway.socket)

    async def close(self) -> None:
        if not self.episode.closed:
            await self.host.gateway.close_episode(self.episode)

    async def finish(self, ended: AgentExit, agent: Agent, task: Any, folder: Path) -> Trajectory:
        await self.close()
        cut = self._find_cut(ended)
        trajectory = self._trajectory(ended, agent)
        outcome = await self._outcome(task, ended, cut, trajectory, folder)
        return _add_outcome(trajectory, outcome, ended, cut)

    def _find_cut(self, ended: AgentExit) -> Status | None:
        """Return the status of an episode that did not end by itself, or raise its failure; None if it did.

        Its reward is what was posted until then. A call that the engine failed is not the agent's fault.
        """
        episode, settings, cut = self.episode, self.host.settings, None
        if ended.timed_out:
            if "timeout" not in settings.train_on:
                limit = f"rollout.timeout_s {self.host.limits.timeout_s:g}"
                raise InfrastructureFailure(
                    f"the agent did not end within {limit}: make it faster, raise the limit, or train on such "
                    "episodes with agent.train_on timeout"
                )
            cut = Status.TRUNCATED_TIME
        elif ended.crash is not None:
            if episode.failure is None and not episode.overflowed and "crash" not in settings.train_on:
                raise EnvironmentFailure(f"the agent failed: {ended.crash}") from ended.crash
            cut = Status.TRUNCATED_TOKENS if episode.overflowed else Status.FAILED
        if episode.failure is not None:
            raise episode.failure
        return cut

    def _trajectory(self, ended: AgentExit, agent: Agent) -> Trajectory:
        """Return the recorded calls as a trajectory, with the rewards that were posted for them."""
        turns, refusals = self.episode.turns(), self.host.gateway.refusals
        if not turns and self.episode.refusal:
            raise EnvironmentFailure(f"the gateway refused the agent's model calls: {self.episode.refusal}")
        if not turns:
            printed = "" if ended.program is None else f"; {ended.program.describe()}"
            refused = f"; the gateway refused {refusals[-1]}" if refusals else ""
            raise EnvironmentFailure(f"the agent made no model call{printed}{refused}. {agent.hint}.")
        return Trajectory(
            task=self.key.task,
            member=self.key.member,
            attempt=self.key.attempt,
            turns=turns,
            status=Status.ONGOING,
            turn_rewards=tuple(turn.reward for turn in turns),
            timings={"wall_s": time.perf_counter() - self.began},
            sampler=self.host.limits.sampling.sampler,
        )

    async def _outcome(
        self, task: Any, ended: AgentExit, cut: Status | None, trajectory: Trajectory, folder: Path
    ) -> Outcome:
        """Return the outcome by the reward function, the agent's return value or the posted rewards."""
        host, rewards = self.host, self.episode.rewards
        posted, success_at = rewards.get("", 0.0), host.settings.success_at
        if cut is None and host.reward is not None:
            output = "" if ended.program is None else ended.program.output
            result = AgentResult(trajectory=trajectory, folder=folder, value=ended.value, output=output)
            outcome = await self._score(host.reward, task, result)
        elif ended.value is not None:
            outcome = read_outcome(ended.value, success_at, "the agent")
        elif rewards or host.is_scored_later or cut is not None:
            success = posted + trajectory.total_reward >= success_at
            return Outcome(reward=posted, success=success and bool(rewards))
        else:
            raise EnvironmentFailure(
                "the agent ended without a reward: return one, POST it to /v1/turnwise/reward, or set agent.reward"
            )
        return replace(outcome, reward=outcome.reward + posted)

    async def _score(self, function: AgentReward, task: Any, result: AgentResult) -> Outcome:
        success_at, seconds = self.host.settings.success_at, self.host.limits.timeout_s
        label = f"the reward {getattr(function, '__name__', 'function')}"
        try:
            with set_in_block(blocking_limit, seconds), allow_interrupts():
                async with asyncio.timeout(seconds):
                    value = await call_reward_function(function, task, result, label=label, fix=lambda error: "fix it")
        except TimeoutError as error:
            raise RewardFailure(f"{label} returned nothing within rollout.timeout_s {seconds:g}: raise it") from error
        return read_outcome(value, success_at, label)


def read_outcome(value: Any, success_at: float, label: str) -> Outcome:
    """Return the outcome that a function gave as a number or an Outcome. Anything else stops the run."""
    outcome = value
    if not isinstance(value, Outcome):
        reward = to_float(value)
        outcome = Outcome(reward=reward, success=reward >= success_at)
    if not outcome.over:
        raise UserError(f"{label} returned tw.goes_on: an agent's run is over when it returns: use tw.won or tw.lost.")
    if not math.isfinite(outcome.reward):
        raise not_a_number(value, read_outcome, label, "return a finite number or a tw.Outcome")
    return outcome


def _add_outcome(trajectory: Trajectory, outcome: Outcome, ended: AgentExit, cut: Status | None) -> Trajectory:
    """Add the outcome to the last turn, and the end of a program's output to its record."""
    *earlier, last = trajectory.turns
    info = dict(last.info) | ({"rewards": dict(outcome.parts)} if outcome.parts else {})
    if isinstance(outcome.text, str) and outcome.text:
        info["outcome"] = outcome.text
    if ended.program is not None:
        info |= {"output": ended.program.output[-MAX_RECORDED:], "errors": ended.program.errors[-MAX_RECORDED:]}
    turns = (*earlier, replace(last, reward=last.reward + outcome.reward, info=info))
    status = cut or (Status.SUCCEEDED if outcome.success else Status.FAILED)
    return replace(trajectory, turns=turns, status=status, turn_rewards=tuple(turn.reward for turn in turns))
