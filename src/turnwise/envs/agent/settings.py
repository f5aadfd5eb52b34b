"""Settings of agents that are trained through the gateway."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from turnwise.settings.choice import Choice
from turnwise.settings.needs import WARM_UP, Package

AGENT_ENV = "agent"
"""`env.kind` of runs that train an agent through the gateway."""


class AgentSettings(Choice):
    """An agent of your own, trained through the gateway in place of an environment."""

    reward: str | None = None
    """FILE.py:function of (task, result); none uses the reward that the agent returns or posts to the gateway."""
    success_at: float = 1.0
    """Lowest reward at which an episode counts as success, if the reward is a plain number."""
    train_on: tuple[Literal["timeout", "crash"], ...] = ()
    """Episodes that are not retried: timeout, as truncated, with the rewards until then; crash, as failed, reward 0."""

    takes_rewards: ClassVar[bool] = True
    """Whether the agent may post rewards to the gateway."""


class CallersAgent(AgentSettings, kind="none"):
    """An agent that the program which calls `tw.Trainer` brings along with the tasks."""


class StartedAgent(AgentSettings):
    """An agent that the run starts for each task."""

    tasks: str | None = None
    """JSONL, JSON or CSV file with a task per row; a column split may assign rows to train, validation and test."""
    random_reply: str | None = None
    """FILE.py:function of (text, rng) that draws a valid reply to the text so far, for the warm-up of tiny."""

    uses: ClassVar[Mapping[str, str | tuple[str, ...]]] = {"random_reply": WARM_UP}

    @property
    def started(self) -> str:
        """Command line or function that the run starts."""
        return str(getattr(self, self.implied_by))


class CommandSettings(StartedAgent, kind="command"):
    """A program."""

    implied_by: ClassVar[str] = "command"
    command: str
    """Command line of the agent, run without a shell; {task} stands for the task as JSON, {task_file} for its file."""
    pass_env: tuple[str, ...] = ()
    """Environment variables that the command gets besides PATH, HOME and the like; others may contain keys."""


class FunctionSettings(StartedAgent, kind="function"):
    """A function of Python."""

    implied_by: ClassVar[str] = "function"
    function: str
    """FILE.py:function, async, of (client, task), where client is an openai.AsyncOpenAI."""

    def packages(self) -> list[Package]:
        return [Package("agent.function", "openai", "gateway")]
