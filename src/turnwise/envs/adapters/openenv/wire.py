"""Messages of OpenEnv's protocol, as of its package 0.10: what a server may answer, checked before it is used.

In the middle of an episode, a reward of null adds 0. At the end it is a failure: OpenEnv's servers
write a reward that was never set, NaN and infinity as the same null, and its own rollouts refuse to score an episode
without a reward.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure
from turnwise.envs.runner import MAX_REWARD
from turnwise.text.truncation import describe_value, first_line

CAPACITY_REACHED, VALIDATION_ERROR, EXECUTION_ERROR = "CAPACITY_REACHED", "VALIDATION_ERROR", "EXECUTION_ERROR"
RESERVED_NAMES = ("reset", "step", "state", "close")
"""Names that no tool may have."""
LIST_TOOLS, CALL_TOOL = "list_tools", "call_tool"
"""Types of the actions of environments with tools."""


class ServerFull(InfrastructureFailure):
    """All sessions of the server are taken."""

    def __init__(self, message: str, max_sessions: int | None) -> None:
        super().__init__(message)
        self.max_sessions = max_sessions


class RejectedAction(Exception):
    """The action does not fit the schema. The environment has not seen it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Answer of a server to `reset` or `step`."""

    observation: Mapping[str, Any]
    reward: float | None
    done: bool
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def flag(self, name: str) -> bool | None:
        """Return a truth value of the metadata, where turnwise's own servers say what the protocol has no field for."""
        value = self.metadata.get(name)
        return value if isinstance(value, bool) else None


def read_reply(text: str | bytes, expected: str) -> Any:
    """Return the data of a reply of the type `expected`; raise what an error message stands for."""
    try:
        reply = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EnvironmentFailure(f"The server's reply is not JSON: {first_line(error)}") from error
    if not isinstance(reply, dict) or not isinstance(reply.get("data"), dict):
        raise EnvironmentFailure(
            f'The server sent {describe_value(reply)} instead of an object with "type" and "data".'
        )
    if reply.get("type") == "error":
        raise _failure(reply["data"])
    if reply.get("type") != expected:
        kind = describe_value(reply.get("type"))
        raise EnvironmentFailure(f'The server answered with a message of the type {kind} instead of "{expected}".')
    return reply["data"]


def _failure(data: Mapping[str, Any]) -> Exception:
    code, message = str(data.get("code")), first_line(str(data.get("message") or "no message"))
    if code == CAPACITY_REACHED:
        most = data.get("max_sessions")
        return ServerFull(message, most if isinstance(most, int) and most > 0 else None)
    if code == VALIDATION_ERROR:
        return RejectedAction(_describe_rejection(data.get("errors")) or message)
    if code == EXECUTION_ERROR:
        return EnvironmentFailure(f"The environment raised: {message}")
    return InfrastructureFailure(f"The server reports {first_line(code)}: {message}")


def _describe_rejection(errors: Any) -> str:
    """Return the first of pydantic's errors: the field, and what is wrong with it."""
    first = errors[0] if isinstance(errors, list) and errors else None
    if not isinstance(first, dict):
        return ""
    where = first.get("loc")
    name = ".".join(map(str, where)) if isinstance(where, list) else ""
    return first_line(": ".join(part for part in (name, str(first.get("msg", ""))) if part))


def read_result(data: Mapping[str, Any]) -> Result:
    """Check the data of an observation. Raises EnvironmentFailure for what cannot be trained on."""
    observation, reward, done = data.get("observation"), data.get("reward"), data.get("done")
    if not isinstance(observation, dict):
        raise EnvironmentFailure(f"The server's observation is {describe_value(observation)}: an object is needed.")
    if not isinstance(done, bool):
        raise EnvironmentFailure(f"The server's done is {describe_value(done)}: true or false is needed.")
    if reward is not None and not (isinstance(reward, int | float) and abs(reward) <= MAX_REWARD):  # NaN fails too
        raise EnvironmentFailure(
            f"The server's reward is {describe_value(reward)}: a number of at most {MAX_REWARD:g} is needed."
        )
    metadata = data.get("metadata") or observation.get("metadata")
    return Result(
        observation=observation,
        reward=None if reward is None else float(reward),
        done=done,
        metadata=metadata if isinstance(metadata, dict) else {},
    )
