"""Settings of agents that are trained through the gateway."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from turnwise.settings.needs import AGENT, WARM_UP
from turnwise.settings.section import Idle, Section

AGENT_ENV = "agent"
"""`env.kind` of runs that train an agent through the gateway."""


class AgentConfig(Section):
    """An agent of your own, trained through the gateway in place of an environment."""

    command: str | None = None
    """Command line of the agent, run without a shell; {task} stands for the task as JSON, {task_file} for its file."""
    function: str | None = None
    """FILE.py:function in place of a command: async, of (client, task), where client is an openai.AsyncOpenAI."""
    tasks: str | None = None
    """JSONL, JSON or CSV file with a task per row; a column split may assign rows to train, validation and test."""
    reward: str | None = None
    """FILE.py:function of (task, result); none uses the reward that the agent returns or posts to the gateway."""
    random_reply: str | None = None
    """FILE.py:function of (text, rng) that draws a valid reply to the text so far, for the warm-up of tiny."""
    success_at: float = 1.0
    """Lowest reward at which an episode counts as success, if the reward is a plain number."""
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """Seconds per episode, waiting for the model included."""
    on_timeout: Literal["retry", "truncate"] = "retry"
    """Episode that takes too long: retried, or trained on as truncated, with the rewards posted until then."""
    on_crash: Literal["retry", "fail"] = "retry"
    """Exception or exit status that is not 0: the episode is retried, or trained on as failed, with reward 0."""
    pass_env: tuple[str, ...] = ()
    """Environment variables that a command gets besides PATH, HOME and the like; others may contain keys."""

    def idle(self) -> Idle:
        return {} if self.command else {"pass_env": ("agent.command none", "set agent.command")}

    uses: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "random_reply": (AGENT, WARM_UP),
        **dict.fromkeys(("tasks", "reward", "success_at", "timeout_s", "on_timeout", "on_crash", "pass_env"), AGENT),
    }

    @model_validator(mode="after")
    def _check_one(self) -> "AgentConfig":
        if self.command and self.function:
            raise ValueError("agent.command and agent.function both name the agent. Leave out one of them.")
        return self

    @property
    def is_set(self) -> bool:
        return bool(self.command or self.function)
