"""Requests about checkpoints that are loaded to play and to chat. Imports no torch."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from turnwise.core.task import Split
from turnwise.studio.requests import LongText, ShortText

Part = Literal["episode", "chat"]


class AgentRequest(BaseModel):
    """A checkpoint to load."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: ShortText
    checkpoint: Annotated[str, Field(pattern=r"^(\w[\w.-]{0,200})?$")] = ""
    """Name of the checkpoint; empty: the newest one."""
    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    """Sampling temperature. None: eval.temperature of the run."""

    @property
    def source(self) -> str:
        return f"{self.run}/checkpoints/{self.checkpoint}" if self.checkpoint else self.run


class AgentCommand(BaseModel):
    """A step of the episode or of the conversation.

    start   begins a new one
    sample  lets the model reply
    reply   replies in its place, in the episode
    say     writes to the model, in the conversation, and lets it reply
    hint    asks the environment's solver
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    do: Literal["start", "sample", "reply", "say", "hint"]
    part: Part = "episode"
    text: LongText = ""
    """Reply, message, or the system message of a new conversation."""
    environment: ShortText = ""
    """Name in the run's mix of environments; empty: the first one."""
    split: Split = "test"
    task: Annotated[int, Field(ge=0, lt=2**40)] = 0
    """Index of the task in its split."""
