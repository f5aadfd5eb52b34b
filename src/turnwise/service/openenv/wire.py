"""Messages of OpenEnv's protocol as a server reads and writes them, as of its package 0.10."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnwise.core.messages import Message, TextPart
from turnwise.core.task import Split
from turnwise.engine.openai.messages import message_json
from turnwise.gateway.chat import GatewayError
from turnwise.gateway.request_body import parse_json
from turnwise.text.truncation import first_line
from turnwise.text.validation import find_invalid_character

INVALID_JSON, UNKNOWN_TYPE, VALIDATION_ERROR = "INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR"
EXECUTION_ERROR, CAPACITY_REACHED, SESSION_ERROR = "EXECUTION_ERROR", "CAPACITY_REACHED", "SESSION_ERROR"
LIST_TOOLS, CALL_TOOL = "list_tools", "call_tool"
TOOL_NOT_FOUND, INVALID_ARGS = "tool_not_found", "invalid_args"
RESERVED_NAMES = ("reset", "step", "state", "close")
"""Names that no tool may have."""
MAX_MESSAGE_BYTES = 4 << 20
"""Size of the largest message of a client: an action, or the arguments of a tool."""
MAX_SEED = 2**63
MAX_ERRORS = 10
"""Errors listed about one message."""

Model = TypeVar("Model", bound=BaseModel)


class ProtocolError(Exception):
    """An error message for the client; its text is one line."""

    def __init__(self, code: str, message: str, **data: Any) -> None:
        super().__init__(first_line(message))
        self.code, self.data = code, data

    def reply(self) -> dict[str, Any]:
        return {"type": "error", "data": {"message": str(self), "code": self.code, **self.data}}


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ResetArguments(BaseModel):
    """Arguments of `reset`. Unknown ones are ignored, as OpenEnv does."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    seed: Annotated[int | None, Field(ge=0, lt=MAX_SEED)] = None
    """Chooses a task of the split, modulo its size, if there is no index. Default: a random task."""
    episode_id: Annotated[str | None, Field(max_length=255)] = None
    """Seed of what is random after the start, so that equal ids repeat an episode. Default: that of member 0."""
    split: Split = "train"
    index: Annotated[int | None, Field(ge=0)] = None
    """Index of the task in its split."""


class TextAction(Strict):
    """The agent's whole reply."""

    message: str = Field(description="The agent's whole reply.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Not read.")


class ToolAction(Strict):
    """A call of a tool, or a request for the list of tools."""

    type: str
    tool_name: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReply:
    """Result of `reset` or `step`."""

    observation: Mapping[str, Any]
    reward: float | None = None
    done: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def data(self) -> dict[str, Any]:
        """Fields of the message. The metadata is in the observation too, where older clients read it."""
        metadata = dict(self.metadata)
        return {
            "observation": {**self.observation, "metadata": metadata},
            "reward": self.reward,
            "done": self.done,
            "metadata": metadata,
        }


def read_message(text: str | bytes | None) -> dict[str, Any]:
    """Return the object of a client's message. Raises ProtocolError."""
    try:
        return parse_json(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text or b"")
    except GatewayError as error:
        raise ProtocolError(INVALID_JSON, error.message) from None


def validate(model: type[Model], data: Any) -> Model:
    """Return the data as the model. Raises ProtocolError with the errors as pydantic lists them."""
    try:
        validated = model.model_validate(data)
    except ValidationError as error:
        errors = [
            {"type": item["type"], "loc": list(item["loc"]), "msg": item["msg"]}
            for item in error.errors(include_url=False, include_context=False, include_input=False)[:MAX_ERRORS]
        ]
        raise ProtocolError(VALIDATION_ERROR, "Invalid message", errors=errors) from None
    if (problem := find_invalid_character(data)) is not None:
        raise invalid("data", f"contains {problem}: remove it")
    return validated


def invalid(name: str, problem: str) -> ProtocolError:
    """Return the error of one field, in the form of pydantic's."""
    errors = [{"type": "value_error", "loc": [name], "msg": problem}]
    return ProtocolError(VALIDATION_ERROR, f"{name}: {problem}", errors=errors)


def chat_json(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [message_json(message) for message in messages]


def tool_content(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the parts of messages as a tool's result in the format of MCP."""
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "image", "data": base64.b64encode(part.data).decode("ascii"), "mimeType": "image/png"}
        for message in messages
        for part in message.parts
    ]
