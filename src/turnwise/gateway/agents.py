"""Run agents through the gateway: each episode is an agent's run, its model calls are the turns of a trajectory.

An agent is a Python function or a command. Its reward is what its reward function gives, else what it returns, else
what it posts to the gateway; an agent without any is a failure, never a reward of 0.
"""

import asyncio
import inspect
import json
import math
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from turnwise.config.agent import AgentConfig
from turnwise.core.blocking import EventLoopBlocked, allow_interrupts, blocking_limit, interruptible
from turnwise.core.errors import (
    FOREIGN_ERRORS,
    EnvironmentFailure,
    InfrastructureFailure,
    RewardFailure,
    UserError,
)
from turnwise.core.source_location import describe_bug
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Status, Trajectory, Turn
from turnwise.envs.text_env import Outcome
from turnwise.gateway.agent_process import ProgramResult, run_program
from turnwise.rewards.functions import call_reward_function, not_a_number, to_float
from turnwise.rollout.collect import GroupCollector
from turnwise.rollout.episode import Limits

if TYPE_CHECKING:  # their packages are optional
    from openai import AsyncOpenAI

    from turnwise.gateway.capture import Episode
    from turnwise.gateway.server import Gateway

MAX_RECORDED = 4000
"""Characters of a program's output that are recorded with the episode."""
MAX_BLOCKING_S = 30.0
"""Seconds that a function may hold the event loop, in which the gateway answers its calls."""

AgentFunction = Callable[["AsyncOpenAI", Any], Awaitable["float | Outcome | None"]]
"""An agent: `async def agent(client, task) -> reward`, or a `tw.Outcome`."""
AgentReward = Callable[[Any, "AgentResult"], Any]
"""Reward of (task, result): a number or an Outcome; may be async."""


class AgentCrash(Exception):
    """The agent raised an exception, or exited with a status other than 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """What an agent's run left behind, for a reward function of (task, result)."""

    trajectory: Trajectory
    """The recorded model calls, one turn each. Their rewards are those that the agent posted."""
    folder: Path
    """Working folder of the episode; it is removed afterwards."""
    value: Any = None
    """Value that the function returned; None for a command."""
    output: str = ""
    """End of a command's standard output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How an agent reaches the gateway."""

    url: str
    key: str
    """Bearer of the episode."""

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that OpenAI's and Anthropic's clients read."""
        return {
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": self.key,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentExit:
    """How an agent's run ended."""

    value: Any = None
    program: ProgramResult | None = None
    cut: Status | None = None
    """Status of an episode that did not end by itself; its reward is what was posted until then."""


class Agent(Protocol):
    hint: str
    """Advice for an agent that makes no call."""

    async def run(self, access: Access, task: Any, folder: Path) -> AgentExit:
        """Run the agent on one task. Raises AgentCrash, UserError or InfrastructureFailure."""
        ...


@dataclass(frozen=True, slots=True)
class CommandAgent:
    """Agent that is a program, in any language and with any client."""

    command: Sequence[str]
    environment: Mapping[str, str]
    hint = (
        "It must use OPENAI_BASE_URL and OPENAI_API_KEY, or ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY, from its "
        "environment; addresses and keys in its code or in files do not reach the gateway"
    )

    async def run(self, access: Access, task: Any, folder: Path) -> AgentExit:
        program = await run_program(
            self.command,
            task=json.dumps(task),
            folder=folder,
            environment={**self.environment, **access.variables},
        )
        if program.is_infrastructure_failure:
            raise InfrastructureFailure(f"the agent did not finish: {program.describe()}")
        if program.status:
            raise AgentCrash(program.describe())
        return AgentExit(program=program)


@dataclass(frozen=True, slots=True)
class FunctionAgent:
    """Agent that is an async function of this process."""

    function: AgentFunction
    hint = "It must call the model with the client that it gets as its first argument"

    async def run(self, access: Access, task: Any, folder: Path) -> AgentExit:
        async with make_client(access) as client:
            return AgentExit(value=await self._call(client, task))

    async def _call(self, client: "AsyncOpenAI", task: Any) -> Any:
        try:
            with allow_interrupts():
                called: Any = self.function(client, task)
                if not inspect.isawaitable(called):
                    raise UserError("the agent is not async: write `async def agent(client, task)`")
                return await interruptible(called, MAX_BLOCKING_S, "the agent")
        except EventLoopBlocked as error:
            raise UserError(
                f"{error}. The gateway answers in the same event loop: await an async client, move slow work into "
                "asyncio.to_thread, or run the agent with agent.command"
            ) from error
        except (UserError, InfrastructureFailure, EnvironmentFailure):
            raise
        except FOREIGN_ERRORS as error:
            raise AgentCrash(describe_bug(error)) from error


def make_client(access: Access) -> "AsyncOpenAI":
    """Return OpenAI's client of an episode. The gateway is on this machine: no proxy, no certificates."""
    try:
        import openai
    except ImportError:
        raise UserError("agents in Python need the package openai: pip install 'turnwise[gateway]'") from None
    transport = openai.DefaultAsyncHttpxClient(verify=False, trust_env=False)
    return openai.AsyncOpenAI(base_url=f"{access.url}/v1", api_key=access.key, http_client=transport, timeout=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCollector(GroupCollector):
    """Episodes of an agent that calls the policy through the gateway."""

    gateway: "Gateway"
    agent: Agent
    find_task: Callable[[Task], Any]
    """Returns what the agent gets as its task."""
    limits: Limits
    settings: AgentConfig
    reward: AgentReward | None = None
    """Reward of (task, result); None: what the agent returns or posts."""
    is_scored_later: bool = False
    """True if reward functions or judges score the trajectories: then the agent need not give a reward."""

    async def episodes(self, keys: Sequence[EpisodeKey]) -> Sequence[Trajectory]:
        (key,) = keys
        began, task = time.perf_counter(), self.find_task(key.task)
        with tempfile.TemporaryDirectory(prefix="turnwise-agent-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            episode = await self.gateway.open_episode(key, self.limits)
            try:
                ended = await self._run(episode, task, folder)
            finally:
                await self.gateway.close_episode(episode)
            trajectory = self._trajectory(key, episode.turns(), ended, time.perf_counter() - began)
            outcome = await self._outcome(episode, task, ended, trajectory, folder)
        return [_finish(trajectory, outcome, ended)]

    async def _run(self, episode: "Episode", task: Any, folder: Path) -> AgentExit:
        """Run the agent and attribute its failures. A call that the engine failed is not the agent's fault."""
        settings, access = self.settings, Access(url=self.gateway.url, key=episode.bearer)
        try:
            async with asyncio.timeout(settings.timeout_s):
                ended = await self.agent.run(access, task, folder)
        except TimeoutError as error:
            if settings.on_timeout == "retry":
                raise InfrastructureFailure(
                    f"the agent did not end within agent.timeout_s {settings.timeout_s:g}: make it faster, raise the "
                    "limit, or train on such episodes with agent.on_timeout truncate"
                ) from error
            ended = AgentExit(cut=Status.TRUNCATED_TIME)
        except AgentCrash as crash:
            if episode.failure is None and not episode.overflowed and settings.on_crash == "retry":
                raise EnvironmentFailure(f"the agent failed: {crash}") from crash
            ended = AgentExit(cut=Status.TRUNCATED_TOKENS if episode.overflowed else Status.FAILED)
        if episode.failure is not None:
            raise episode.failure
        return ended

    def _trajectory(self, key: EpisodeKey, turns: tuple[Turn, ...], ended: AgentExit, wall_s: float) -> Trajectory:
        """Return the recorded calls as a trajectory, with the rewards that were posted for them."""
        if not turns:
            printed = "" if ended.program is None else f"; {ended.program.describe()}"
            refused = f"; the gateway refused {self.gateway.refusals[-1]}" if self.gateway.refusals else ""
            raise EnvironmentFailure(f"the agent made no model call{printed}{refused}. {self.agent.hint}.")
        return Trajectory(
            task=key.task,
            member=key.member,
            attempt=key.attempt,
            turns=turns,
            status=Status.ONGOING,
            turn_rewards=tuple(turn.reward for turn in turns),
            timings={"wall_s": wall_s},
        )

    async def _outcome(
        self, episode: "Episode", task: Any, ended: AgentExit, trajectory: Trajectory, folder: Path
    ) -> Outcome:
        """Return the outcome by the reward function, the agent's return value or the posted rewards."""
        posted = episode.rewards.get("", 0.0)
        if ended.cut is None and self.reward is not None:
            output = "" if ended.program is None else ended.program.output
            result = AgentResult(trajectory=trajectory, folder=folder, value=ended.value, output=output)
            outcome = await self._score(self.reward, task, result)
        elif ended.value is not None:
            outcome = read_outcome(ended.value, self.settings.success_at, "the agent")
        elif episode.rewards or self.is_scored_later or ended.cut is not None:
            success = posted + trajectory.total_reward >= self.settings.success_at
            return Outcome(reward=posted, success=success and bool(episode.rewards))
        else:
            raise EnvironmentFailure(
                "the agent ended without a reward: return one, POST it to /v1/turnwise/reward, or set agent.reward"
            )
        return replace(outcome, reward=outcome.reward + posted)

    async def _score(self, function: AgentReward, task: Any, result: AgentResult) -> Outcome:
        label, seconds = f"the reward {getattr(function, '__name__', 'function')}", self.settings.timeout_s
        token = blocking_limit.set(seconds)
        try:
            with allow_interrupts():
                async with asyncio.timeout(seconds):
                    value = await call_reward_function(function, task, result, label=label, fix=lambda error: "fix it")
        except TimeoutError as error:
            raise RewardFailure(f"{label} returned nothing within agent.timeout_s {seconds:g}: raise it") from error
        finally:
            blocking_limit.reset(token)
        return read_outcome(value, self.settings.success_at, label)


def read_outcome(value: Any, success_at: float, label: str) -> Outcome:
    """Return the outcome that a function gave as a number or an Outcome. Anything else stops the run."""
    outcome = value
    if not isinstance(value, Outcome):
        reward = to_float(value)
        outcome = Outcome(reward=reward, success=reward >= success_at)
    if not outcome.over:
        raise UserError(f"{label} returned tw.goes_on: an agent's run is over when it returns: use tw.won or tw.lost")
    if not math.isfinite(outcome.reward):
        raise not_a_number(value, read_outcome, label, "return a finite number or a tw.Outcome")
    return outcome


def _finish(trajectory: Trajectory, outcome: Outcome, ended: AgentExit) -> Trajectory:
    """Add the outcome to the last turn, and the end of a program's output to its record."""
    *earlier, last = trajectory.turns
    info = dict(last.info) | ({"rewards": dict(outcome.parts)} if outcome.parts else {})
    if isinstance(outcome.text, str) and outcome.text:
        info["outcome"] = outcome.text
    if ended.program is not None:
        info |= {"output": ended.program.output[-MAX_RECORDED:], "errors": ended.program.errors[-MAX_RECORDED:]}
    turns = (*earlier, replace(last, reward=last.reward + outcome.reward, info=info))
    status = ended.cut or (Status.SUCCEEDED if outcome.success else Status.FAILED)
    return replace(trajectory, turns=turns, status=status, turn_rewards=tuple(turn.reward for turn in turns))
