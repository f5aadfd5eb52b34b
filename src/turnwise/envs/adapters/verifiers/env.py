"""Environments of the verifiers package: it runs in a Python of its own, and turnwise samples the replies."""

import json
import random
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator

from turnwise.core.errors import EnvironmentFailure
from turnwise.core.task import Split
from turnwise.envs.adapters.openenv.facts import ServerFacts, ask_server
from turnwise.envs.adapters.openenv.wire import Result
from turnwise.envs.adapters.remote_env import RemoteEnv, endpoint
from turnwise.envs.adapters.server_process import ServerCommand, ServerProcess, python_of, running_server
from turnwise.envs.adapters.verifiers.runner import VerifiersRunner
from turnwise.envs.text_env import Outcome, StrictParams
from turnwise.envs.tool_env import Style
from turnwise.network.secrets import check_variable_name
from turnwise.settings.section import Positive

if TYPE_CHECKING:
    from turnwise.envs.adapters.openenv.connection import Endpoint

PROGRAM = """
import sys, types
package = types.ModuleType("turnwise")
package.__path__ = [sys.argv.pop(1)]
sys.modules["turnwise"] = package
from turnwise.envs.adapters.verifiers.host.server import main
main()
"""
"""Runs the host, which needs nothing else of turnwise, in a Python that need not have turnwise."""
CACHES = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_HUB_OFFLINE")
VIEW = ("package", "python", "variables", "style", "success_at", "timeout_s", "wait_s", "max_message_mb")
"""Parameters that do not change the task, or are a path of this machine."""


class Verifiers(RemoteEnv):
    """An environment of verifiers, by its module, folder or file."""

    runner = VerifiersRunner
    view_params = (*RemoteEnv.view_params, *VIEW)

    class Params(StrictParams):
        package: str
        """The environment: a module that is installed, a folder, or a FILE.py."""
        python: str | None = None
        """Python that has verifiers. Default: that of the folder's .venv, else this one."""
        args: dict[str, Any] = Field({})
        """Arguments of load_environment(), or settings of the taskset."""
        variables: tuple[str, ...] = ()
        """Environment variables that the environment may read, such as the API key of its judge."""
        splits: dict[Split, str] = Field({})
        """The environment's split for train, validation and test: train or eval. Default: by their types."""
        style: Style = "hermes"
        """Format of tool calls: hermes (also Qwen), llama, mistral, python (fenced blocks) or answer (small models)."""
        success_at: float = 1.0
        """Least reward of a successful episode."""
        timeout_s: Annotated[float, Field(gt=0)] = 120.0
        """Time for the environment's answer to a reply, its rewards included, in seconds."""
        wait_s: Annotated[float, Field(ge=0)] = 120.0
        """Time in which the environment must start an episode, in seconds."""
        max_message_mb: Positive = 16
        """Size of the largest message of the environment, in MiB."""
        max_observation: Positive = 20_000
        """Characters of a message that the agent sees; longer ones are truncated in the middle."""

        @field_validator("variables")
        @classmethod
        def _check_variables(cls, names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(map(check_variable_name, names))

    params: Params

    @classmethod
    def check(cls, params: Any) -> None:
        """Load the environment."""
        facts_of(params)

    @classmethod
    def size(cls, params: Any, split: Split) -> int:
        return facts_of(params).tasks[split].size

    async def reset(self, rng: random.Random) -> str:
        from turnwise.envs.adapters.openenv.connection import open_session

        tasks = facts_of(self.params).tasks[self.split or "train"]
        arguments = {"split": tasks.split, "index": tasks.index(self.index % tasks.size)}
        self.session, self.last = await open_session(_endpoint(self.params), arguments)
        return json.dumps(self.answer.observation.get("messages"))

    async def send(self, content: str, calls: list[dict[str, Any]]) -> Result:
        """Send a reply of the agent."""
        result = await self.exchange({"content": content, "tool_calls": calls})
        if result.done and result.reward is None:
            raise EnvironmentFailure("The environment ended the episode without a reward.")
        return result

    async def step(self, action: str) -> Outcome:
        """Send a reply without calls. The runner sends those with calls too."""
        result = await self.send(action, [])
        text = json.dumps(result.observation.get("messages"))
        return Outcome(text=text, reward=self.reward(), over=result.done, success=self.succeeded())

    def reward(self) -> float:
        """Return the rubric's reward, which comes at the end."""
        return self.answer.reward or 0.0 if self.answer.done else 0.0

    def succeeded(self) -> bool:
        return self.answer.done and self.reward() >= self.params.success_at


def _server(params: Any) -> ServerProcess:
    settings = {"target": params.package, "args": params.args, "max_turns": params.max_turns}
    source = str(Path(__file__).parents[3])
    python = python_of(params.package, params.python)
    arguments = (python, "-P", "-c", PROGRAM, source, json.dumps(settings, sort_keys=True))
    variables = (*CACHES, *params.variables)
    return running_server(ServerCommand(name=params.package, arguments=arguments, variables=variables))


@cache
def _ask(url: str, key: str, splits: tuple[tuple[Split, str], ...]) -> ServerFacts:
    return ask_server(url, key, dict(splits))


def facts_of(params: Any) -> ServerFacts:
    """Return the tasks of the environment; it is asked once per process."""
    server = _server(params)
    return _ask(server.url, server.key, tuple(params.splits.items()))


def _endpoint(params: Any) -> "Endpoint":
    server = _server(params)
    return endpoint(server.url, server.key, params)
