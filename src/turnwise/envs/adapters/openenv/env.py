"""OpenEnv as a client: episodes on a server that speaks OpenEnv's protocol."""

import json
import random
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator

from turnwise.core.errors import EnvironmentFailure, UserError
from turnwise.core.messages import Message
from turnwise.core.task import Split
from turnwise.envs.adapters.openenv.actions import ActionSpec, has_tools
from turnwise.envs.adapters.openenv.facts import ServerFacts, ask_server
from turnwise.envs.adapters.openenv.observations import describe_observation, read_messages
from turnwise.envs.adapters.openenv.package_server import package_url
from turnwise.envs.adapters.openenv.runner import OpenEnvRunner
from turnwise.envs.adapters.openenv.wire import RejectedAction, Result
from turnwise.envs.adapters.remote_env import RemoteEnv, endpoint
from turnwise.envs.param_setting import param_setting
from turnwise.envs.seeds import FIRST_SEED
from turnwise.envs.text_env import Outcome, StrictParams
from turnwise.envs.tool_env import Style, escape_tags
from turnwise.network.secrets import check_variable_name, read_key, split_url
from turnwise.settings.section import Positive
from turnwise.text.validation import find_invalid_character

if TYPE_CHECKING:
    from turnwise.envs.adapters.openenv.connection import Endpoint

SEED_BLOCKS = 2**29
"""Seeds of a split where seeds choose the tasks: below 2**31 in all, which every random generator takes."""
SCHEMES = {"ws://": "http://", "wss://": "https://"}
LIMITS = ("timeout_s", "wait_s", "max_message_mb", "max_observation", "null_reward", "style")
"""Parameters of the connection and the view, which do not change the task."""
TOKEN_VARIABLE = "OPENENV_TOKEN"
MAX_ACTION_CHARS = 1_000_000
"""Longest action, as JSON. Servers close the connection at a limit of their own."""


class OpenEnv(RemoteEnv):
    """An environment of an OpenEnv server, by its URL or the package that has it."""

    runner = OpenEnvRunner
    view_params = (*RemoteEnv.view_params, "server", "python", "token_env", *LIMITS)

    class Params(StrictParams):
        server: str
        """URL of the server (http, https, ws, wss), or a package to start: a folder with openenv.yaml, or a module."""
        python: str | None = None
        """Python that runs a package's server. Default: that of the folder's .venv, else this one."""
        token_env: str | None = None
        """Variable with the server's bearer token. Default: OPENENV_TOKEN, if it is set."""
        splits: dict[Split, str] = Field({})
        """The server's split for train, validation and test, by name. Default: by their types."""
        reset: dict[str, Any] = Field({})
        """Further arguments of reset."""
        style: Style = "hermes"
        """Format of tool calls: hermes (also Qwen), llama, mistral, python (fenced blocks) or answer (small models)."""
        success_at: float | None = None
        """Least last reward of a successful episode. Default: the server's word, else any reward above 0."""
        null_reward: Literal["failure", "zero"] = "failure"
        """Reward of null at the end: a failure, since OpenEnv sends it for NaN too, or zero."""
        timeout_s: Annotated[float, Field(gt=0)] = 60.0
        """Time for the answer to one message, in seconds."""
        wait_s: Annotated[float, Field(ge=0)] = 120.0
        """Time in which a server that is full or restarts must open a session, in seconds."""
        max_message_mb: Positive = 16
        """Size of the largest message of the server, in MiB."""
        max_observation: Positive = 8000
        """Characters of an observation that the agent sees; longer ones are truncated in the middle."""

        @field_validator("token_env")
        @classmethod
        def _check_variable(cls, name: str | None) -> str | None:
            return None if name is None else check_variable_name(name)

    params: Params

    @classmethod
    def check(cls, params: Any) -> None:
        """Ask the server, which a package's server is started for."""
        facts_of(params)

    @classmethod
    def size(cls, params: Any, split: Split) -> int | None:
        tasks = facts_of(params).tasks
        return tasks[split].size if tasks else None

    @property
    def has_tools(self) -> bool:
        return has_tools(self.facts.action)

    @property
    def facts(self) -> ServerFacts:
        return facts_of(self.params)

    @property
    def action_spec(self) -> ActionSpec:
        return ActionSpec.from_schema(self.facts.action)

    def rules(self) -> str:
        return escape_tags(self.facts.description)

    async def reset(self, rng: random.Random) -> str:
        """Open a session for the task. `seed` chooses it where the server has no tasks."""
        from turnwise.envs.adapters.openenv.connection import open_session

        arguments = {"seed": self._seed(), "episode_id": f"{self.rng.getrandbits(128):032x}", **self.params.reset}
        if (tasks := self.facts.tasks).get(self.split or "train"):
            chosen = tasks[self.split or "train"]
            arguments |= {"split": chosen.split, "index": chosen.index(self.index)}
        try:
            self.session, self.last = await open_session(endpoint_of(self.params), arguments)
        except RejectedAction as rejected:
            raise UserError(f"{self.params.server} rejects the arguments of reset: {rejected}") from rejected
        if self.last.done:
            raise EnvironmentFailure("The episode is over before the first action.")
        return self.describe()

    def _seed(self) -> int:
        """Return a seed that no task of another split has."""
        splits = tuple(FIRST_SEED)
        return len(splits) * (self.index % SEED_BLOCKS) + splits.index(self.split or "train")

    def describe(self) -> str:
        return describe_observation(self.answer.observation, self.params.max_observation)

    def chat(self) -> tuple[Message, ...]:
        """Return the observation's messages, if the environment talks in chat; the reply is then the action."""
        return read_messages(self.answer.observation, self.params.max_observation)

    async def step(self, action: str) -> Outcome:
        await self.send(self.action_spec.read(action))
        return self.outcome()

    async def send(self, action: Mapping[str, Any]) -> Result:
        """Send an action. Raises ValueError, whose text is for the agent, if it does not fit the schema."""
        if (problem := find_invalid_character(action)) is not None:
            raise ValueError(f"the action contains {problem}: remove it")
        if len(json.dumps(action)) > MAX_ACTION_CHARS:
            raise ValueError(f"the action is longer than {MAX_ACTION_CHARS:,} characters")
        try:
            return await self.exchange(action)
        except RejectedAction as rejected:
            raise ValueError(str(rejected)) from rejected

    def outcome(self) -> Outcome:
        result = self.answer
        return Outcome(text=self.describe(), reward=self.reward(), over=result.done, success=self.succeeded())

    def reward(self) -> float:
        result = self.answer
        if result.reward is None and result.done and self.params.null_reward == "failure":
            raise EnvironmentFailure(
                f"The reward at the end of the episode is null, which OpenEnv also sends for NaN. Fix the environment, "
                f"or set {param_setting('null_reward')} zero."
            )
        return result.reward or 0.0

    def succeeded(self) -> bool:
        result = self.answer
        if not result.done:
            return False
        if self.params.success_at is not None:
            return self.reward() >= self.params.success_at
        told = result.flag("success")
        return self.reward() > 0 if told is None else told

    def random_action(self, rng: random.Random) -> str | None:
        """Return an action that fits the schema, or one of those that the observation offers."""
        offered = self.answer.observation.get("actions")
        if isinstance(offered, list) and offered and all(isinstance(move, str) for move in offered):
            return rng.choice(offered)
        if self.has_tools or self.chat():
            return None
        return self.action_spec.random(rng, self.describe().split()[-50:])


@cache
def _ask(server: str, python: str | None, token_env: str | None, splits: tuple[tuple[Split, str], ...]) -> ServerFacts:
    url = _url(server, python)
    return ask_server(url, _token(url, token_env), dict(splits))


def facts_of(params: OpenEnv.Params) -> ServerFacts:
    """Return what the server says about its environment; it is asked once per process."""
    return _ask(params.server, params.python, params.token_env, tuple(params.splits.items()))


def endpoint_of(params: OpenEnv.Params) -> "Endpoint":
    url = _url(params.server, params.python)
    return endpoint(url, _token(url, params.token_env), params)


def _url(server: str, python: str | None) -> str:
    """Return the server's URL. A package's server is started if it does not run."""
    for scheme, other in SCHEMES.items():
        if server.startswith(scheme):
            server = other + server.removeprefix(scheme)
    if "://" not in server:
        return package_url(server, python)
    if python is not None:
        raise UserError(f"{param_setting('python')} has an effect only for a package: {server} runs already.")
    _split(server)
    return server.rstrip("/").removesuffix("/ws")


def _split(url: str) -> Any:
    return split_url(
        url,
        option=param_setting("server"),
        example="http://localhost:8000",
        fix=f"name the variable that has it with {param_setting('token_env')}",
    )


def _token(url: str, variable: str | None) -> str | None:
    return read_key(_split(url), variable, default=TOKEN_VARIABLE, option=param_setting("token_env"))
