"""Agents: a Python function or a command that calls the policy through the gateway."""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from turnwise.concurrency.blocking import EventLoopBlocked, allow_interrupts, interruptible
from turnwise.core.errors import (
    FOREIGN_ERRORS,
    EnvironmentFailure,
    InfrastructureFailure,
    UserError,
    optional_packages,
)
from turnwise.envs.text_env import Outcome
from turnwise.gateway.agent_process import ProgramResult, run_program
from turnwise.user_code.source_location import describe_bug

if TYPE_CHECKING:  # their packages are optional
    from openai import AsyncOpenAI


MAX_BLOCKING_S = 30.0
"""Seconds that a function may hold the event loop, in which the gateway answers its calls."""

AgentFunction = Callable[["AsyncOpenAI", Any], Awaitable["float | Outcome | None"]]
"""An agent: `async def agent(client, task) -> reward`, or a `tw.Outcome`."""


class AgentCrash(Exception):
    """The agent raised an exception, or exited with a status other than 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """URL and key with which an agent reaches the gateway."""

    url: str
    key: str
    """Bearer of the episode."""
    socket: str = ""
    """Name of the gateway's Unix socket; empty if it has none."""

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
    """End of an agent's run."""

    value: Any = None
    """Value that the function returned; None for a command."""
    program: ProgramResult | None = None
    crash: AgentCrash | None = None
    timed_out: bool = False


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
                    raise UserError("The agent is not async: write `async def agent(client, task)`")
                return await interruptible(called, MAX_BLOCKING_S, "the agent")
        except EventLoopBlocked as error:
            raise UserError(
                f"{error}. The gateway answers in the same event loop: await an async client, move slow work into "
                "asyncio.to_thread, or run the agent with agent.command."
            ) from error
        except (UserError, InfrastructureFailure, EnvironmentFailure):
            raise
        except FOREIGN_ERRORS as error:
            raise AgentCrash(describe_bug(error)) from error


def make_client(access: Access) -> "AsyncOpenAI":
    """Return OpenAI's client of an episode. A gateway without TLS is near: no proxy, and no certificates to load."""
    with optional_packages("An agent in Python", "gateway", "openai"):
        import openai
    secure = access.url.startswith("https:")
    transport = openai.DefaultAsyncHttpxClient(verify=secure, trust_env=secure)
    return openai.AsyncOpenAI(base_url=f"{access.url}/v1", api_key=access.key, http_client=transport, timeout=None)


async def run_agent(agent: Agent, access: Access, task: Any, folder: Path, timeout_s: float | None) -> AgentExit:
    """Run an agent on one task, at most `timeout_s` seconds. Raises UserError or InfrastructureFailure."""
    try:
        async with asyncio.timeout(timeout_s):
            return await agent.run(access, task, folder)
    except TimeoutError:
        return AgentExit(timed_out=True)
    except AgentCrash as crash:
        return AgentExit(crash=crash)
