"""Messages between an episode and its environment on a worker: JSON that is checked against types, with a version.

What an environment returns is data, of which nothing is run where it is read.
"""

import traceback
from collections.abc import Awaitable
from dataclasses import replace
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticSerializationError

from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, Outage, RewardFailure, UserError
from turnwise.core.messages import Message
from turnwise.core.protocols import Observation, StepResult
from turnwise.core.task import Task
from turnwise.record.jsonl import to_json_value

VERSION: Literal[1] = 1
ERRORS = {
    error.__name__: error for error in (RewardFailure, Outage, UserError, EnvironmentFailure, InfrastructureFailure)
}
"""Errors that keep their type on the way. Any other is a bug, whose text has its traceback."""


class _Wire(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants"
    )
    version: Literal[1] = VERSION

    def encode(self) -> bytes:
        return self.model_dump_json(exclude_defaults=True).encode()

    @classmethod
    def decode(cls, message: bytes) -> Self:
        try:
            return cls.model_validate_json(message)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise InfrastructureFailure(
                f"A message of an environment worker cannot be read ({where}: {first['msg']}). Run one version of "
                "turnwise on all nodes."
            ) from error


class Opening(_Wire):
    """Opens an episode."""

    task: Task
    member: int
    attempt: int


class Action(_Wire):
    """The agent's message."""

    message: Message


class Reply(_Wire):
    """What the environment returned, and the seconds that it took; or how it failed."""

    seconds: float = 0.0
    observation: Observation | None = None
    result: StepResult | None = None
    error: str | None = None
    """Name of an error in ERRORS, or "" for a bug."""
    text: str = ""

    def read(self) -> Observation | StepResult | None:
        """Return the result, or raise what the environment raised."""
        if self.error is not None:
            raise ERRORS.get(self.error, RuntimeError)(self.text)
        return self.observation or self.result


async def encode_reply(call: Awaitable[tuple[Observation | StepResult | None, float]]) -> bytes:
    """Await a call of an environment and return its reply, also if it fails or returns what JSON cannot hold."""
    try:
        value, seconds = await call
        if isinstance(value, StepResult):
            return Reply(result=_plain(value), seconds=seconds).encode()
        return Reply(observation=value, seconds=seconds).encode()
    except (PydanticSerializationError, ValidationError) as error:
        problem = " ".join(str(error).split())
        text = f"What the environment returned cannot be sent between processes ({problem}). Use plain values."
        return Reply(error=EnvironmentFailure.__name__, text=text).encode()
    except Exception as error:
        return _failure(error).encode()


def _plain(result: StepResult) -> StepResult:
    """Return the result with truth values of Python, and with info as it is recorded."""
    return replace(
        result,
        terminated=bool(result.terminated),
        truncated=bool(result.truncated),
        success=bool(result.success),
        invalid=bool(result.invalid),
        info=to_json_value(result.info),
    )


def _failure(error: Exception) -> Reply:
    known = next((base.__name__ for base in type(error).__mro__ if ERRORS.get(base.__name__) is base), None)
    if known is not None and type(error).__module__.startswith("turnwise."):
        return Reply(error=known, text=str(error))
    return Reply(error="", text="".join(traceback.format_exception(error)).rstrip())
