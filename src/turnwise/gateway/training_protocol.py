"""Requests and replies between a remote `tw.Trainer` and `turnwise serve --train`, as JSON.

POST to PREFIX and        request            reply
(nothing)                 Connect            Connection
/episodes                 OpenRequest        OpenReply
/episodes/finish          FinishRequest      FinishReply
/episodes/close           CloseRequest       Done
/step                     StepRequest        StepReply
/evaluation               EvaluationRequest  Done
/save                     SaveRequest        SaveReply

All need the admin token, and all but the first the session of the trainer that connected last. Token ids stay on the
server: a step names episodes that it recorded. Any request may be repeated after a broken connection.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt

from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, RewardFailure
from turnwise.core.messages import Message, text_parts
from turnwise.core.task import Task
from turnwise.core.trajectory import Status, Stop, Trajectory, Turn
from turnwise.envs.text_env import Outcome

PREFIX = "/v1/turnwise/training"

FailureKind = Literal["environment", "reward", "infrastructure"]
FAILURES: dict[FailureKind, type[Exception]] = {
    "environment": EnvironmentFailure,
    "reward": RewardFailure,
    "infrastructure": InfrastructureFailure,
}
"""Failures of an episode. A subclass comes before its base."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Request(_Body):
    session: str


class Connect(_Body):
    pass


class Connection(_Body):
    session: str
    config: dict[str, Any]
    path: str
    steps_done: int
    api_key: str
    """For `Trainer.client`."""


class OpenRequest(_Request):
    task: Any
    member: NonNegativeInt
    attempt: NonNegativeInt
    evaluation: bool


class OpenReply(_Body):
    id: str
    api_key: str
    """Bearer of the agent that runs the episode."""


class OutcomeBody(_Body):
    reward: float
    success: bool
    text: str
    parts: dict[str, float]

    @classmethod
    def of(cls, outcome: Outcome) -> "OutcomeBody":
        text = outcome.text if isinstance(outcome.text, str) else ""
        return cls(reward=outcome.reward, success=outcome.success, text=text, parts=dict(outcome.parts))

    def outcome(self) -> Outcome:
        return Outcome(reward=self.reward, success=self.success, text=self.text, parts=self.parts)


class FinishRequest(_Request):
    id: str
    outcome: OutcomeBody | None
    """The agent's return value; None if it returned none."""
    crash: str | None
    timed_out: bool


class TurnBody(_Body):
    text: str
    reward: float
    stop: Stop
    extends: bool
    temperature: float


class TrajectoryBody(_Body):
    """A trajectory without its token ids."""

    status: Status
    timings: dict[str, float]
    turns: list[TurnBody]

    @classmethod
    def of(cls, trajectory: Trajectory) -> "TrajectoryBody":
        turns = [
            TurnBody(
                text=turn.message.content,
                reward=turn.reward,
                stop=turn.stop,
                extends=turn.extends,
                temperature=turn.temperature,
            )
            for turn in trajectory.turns
        ]
        return cls(status=trajectory.status, timings=dict(trajectory.timings), turns=turns)

    def trajectory(self, task: Task, member: int, attempt: int) -> Trajectory:
        """Return the trajectory for the trainer's program: its turns have messages and rewards, and no tokens."""
        turns = tuple(
            Turn(
                context_ids=(),
                extends=turn.extends,
                action_ids=(),
                action_logprobs=(),
                temperature=turn.temperature,
                spans=(),
                message=Message(role="assistant", parts=text_parts(turn.text)),
                stop=turn.stop,
                reward=turn.reward,
            )
            for turn in self.turns
        )
        return Trajectory(
            task=task,
            member=member,
            attempt=attempt,
            turns=turns,
            status=self.status,
            turn_rewards=tuple(turn.reward for turn in turns),
            timings=self.timings,
        )


class FailureBody(_Body):
    kind: FailureKind
    message: str

    @classmethod
    def of(cls, failure: Exception) -> "FailureBody":
        kind = next(name for name, failure_type in FAILURES.items() if isinstance(failure, failure_type))
        return cls(kind=kind, message=str(failure))

    def failure(self) -> Exception:
        return FAILURES[self.kind](self.message)


class FinishReply(_Body):
    """End of an episode: exactly one of the two is set."""

    trajectory: TrajectoryBody | None = None
    failure: FailureBody | None = None


class Done(_Body):
    """Reply without content."""


class CloseRequest(_Request):
    id: str


class StepRequest(_Request):
    step: int
    """Number of the step, counted from 1."""
    groups: list[list[str]]
    """Episodes of each group."""
    counts: dict[str, int]
    """Failures while the groups were gathered."""
    last_failure: str | None


class StepReply(_Body):
    metrics: dict[str, Any]


class EvaluationRequest(_Request):
    name: str
    episodes: list[str]
    dropped: NonNegativeInt


class SaveRequest(_Request):
    pass


class SaveReply(_Body):
    path: str
