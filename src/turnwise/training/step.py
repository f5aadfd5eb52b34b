"""The seams of a training step: the source of its episodes, the estimator, and the parts around it.

rollout = await source.groups(step)          episodes, scored and filtered
sampled = await estimator.sample(rollout)    what the estimator needs besides
estimate = estimator.estimate(rollout, sampled, learner)
update(learner, estimate)
record                                       parts add metrics and read the record
publish the weights                          parts finish the step
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from turnwise.algos.turn_discount import CriticFit
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.learner import Learner, StepSettings
from turnwise.core.protocols import EngineControl
from turnwise.core.samples import Batch, Sample, TrainSample
from turnwise.core.trajectory import Group, Trajectory
from turnwise.data.samples import gather_sampled
from turnwise.record.metrics import rollout_metrics
from turnwise.record.steps import EpisodeSource, IdleReason, StepRecord
from turnwise.rollout.collect import GroupCollector
from turnwise.rollout.failures import DroppedEpisodes
from turnwise.rollout.tasks import TaskSource

ShowProgress = Callable[[str, int, int], None]
"""Phase, done, total."""
Baselines = Mapping[tuple[str, int], float]
"""Return of a greedy episode of each task, by environment and seed."""
Metrics = Mapping[str, float]
"""Metrics by their full names, such as `rollout/success`."""
TOKEN_SCORES = {"token_logprobs": "learner_logprobs", "token_entropies": "entropies"}
"""Values per token from `Learner.forward_backward`, and the names under which they are recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The episodes of a step."""

    number: int
    """Number of the step, from 1."""
    source: EpisodeSource
    """Played or stored."""
    groups: list[Group]
    """All groups, with their rewards."""
    kept: list[Group]
    """Groups to train on."""
    retried: Sequence[Group] = ()
    """Groups of unsolved tasks that were played again and solved, which stand in for their first ones in `kept`."""
    empty: IdleReason | None = None
    """Why no group is kept; None if some are."""
    kept_share: float
    """Share of the groups that passed the filter, including surplus groups beyond a full batch."""
    rate_scale: float = 1.0
    """Factor of the step's learning rates."""
    counts: Counter[str]
    """Failed attempts and dropped episodes by cause, for metrics."""
    baselines: Baselines | None = None
    """None if the estimator does not need them."""
    dropped: DroppedEpisodes
    """Episodes that are not in the groups because they failed or their group was dropped."""

    @property
    def num_tokens(self) -> float:
        """Number of ids in the groups, sampled or not."""
        turns = [turn for group in self.groups for trajectory in group.trajectories for turn in trajectory.turns]
        return float(sum(len(turn.context_ids) + len(turn.action_ids) for turn in turns))

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the episodes by their full names."""
        metrics = rollout_metrics(self.groups)
        if self.source is EpisodeSource.STORED:
            return metrics
        return {
            **metrics,
            "rollout/kept_groups": float(len(self.kept)),
            "rollout/kept_share": self.kept_share,
            **{f"rollout/{name}": float(count) for name, count in self.counts.items()},
            "rollout/dropped": float(self.dropped.dropped),
            "rollout/dropped_no_reward": float(self.counts["dropped_no_reward"]),
        }


class Source(Protocol):
    """Origin of a step's groups: `Played`, `PlayedAhead` (asynchronous), `Stored`, or the user's own."""

    async def groups(self, step: int) -> Rollout:
        """Return the scored and filtered groups of the step after `step` steps."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Training data of a step. Lists have one tensor per sample, of its length unless noted."""

    trajectories: tuple[Trajectory, ...]
    """Episodes that are trained on."""
    group_ids: tuple[int, ...]
    """Group of each trajectory."""
    samples: list[Sample]
    """Their segments."""
    old_logprobs: list[Tensor]
    """Log-probabilities in the denominator of the ratio."""
    ref_logprobs: list[Tensor] | None
    """Log-probabilities under the reference; None without one."""
    old_values: list[Tensor] | None
    """The critic's values before the update; None without a critic of tokens."""
    advantages: list[Tensor]
    """Advantage of each token; 0 where nothing was sampled."""
    returns: list[Tensor] | None
    """Targets of the critic; None without a critic of tokens."""
    loss_masks: list[Tensor]
    """Sampled tokens selected by algo.loss_tokens, [K] bool per sample."""
    advantage_masks: list[Tensor]
    """Sampled tokens selected by algo.advantage_tokens, [K] bool per sample."""
    critic_fit: dict[int, CriticFit] | None
    """Fit of the critic by distance from the end; None without a critic."""
    metrics: dict[str, float]
    """Metrics of the estimate, without the prefix `train/`."""
    rate_scale: float = 1.0
    """Factor of the learning rates in this step; 0 skips the update."""
    of_utterances: bool = False
    """The samples are single utterances, some of which are not in the step's episodes."""


Sampled = TypeVar("Sampled")


class Estimator(Protocol[Sampled]):
    """Turns a step's episodes into training data: `OnPolicy`, `Archer`, `OfflineArcher`, or the user's own."""

    setting: str = "algo.estimator"
    """The setting that chose it with its value, for errors."""
    trains: bool = False
    """Whether `estimate` trains a network of its own."""

    async def sample(self, rollout: Rollout) -> Sampled:
        """Sample what the estimate needs besides the episodes, with the policy that played them."""
        ...

    def estimate(self, rollout: Rollout, sampled: Sampled, learner: Learner) -> Estimate | IdleReason:
        """Return the training data, or why there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """Parts from which a source or an estimator of the user's is built."""

    config: Config
    """All settings."""
    learner: Learner
    """Scores samples and takes optimizer steps."""
    engine: EngineControl
    """Generates."""
    tasks: TaskSource
    """Draws the tasks of a step."""
    collector: GroupCollector
    """Plays groups of episodes of tasks."""
    source: Source
    """The source that the other settings describe."""
    on_policy: Estimator[None]
    """The estimator of algo.advantage."""


class TokenStatistics:
    """Values of each sampled token in the first epoch, by the sample's index in the estimate."""

    def __init__(self) -> None:
        self._columns: dict[int, dict[str, Tensor]] = {}

    def add(self, samples: Sequence[TrainSample], batch: Batch, scores: Mapping[str, Tensor]) -> None:
        """Add the values of a batch. Later epochs are ignored: the policy has trained on the tokens by then."""
        for column, name in TOKEN_SCORES.items():
            if column in scores:  # missing while only the critic is trained
                for index, values in zip(batch.order, scores[column].split(batch.counts), strict=True):
                    self._columns.setdefault(samples[index].index, {}).setdefault(name, values)

    def of(self, index: int) -> dict[str, Tensor]:
        """Return the columns of a sample, [K] each; empty if it was not trained on."""
        return {name: values.cpu() for name, values in self._columns.get(index, {}).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedStep:
    """A step after its update."""

    number: int
    rollout: Rollout
    estimate: Estimate | None
    """None if there was nothing to train on."""
    metrics: Metrics
    """Metrics of the update, without the prefix `train/`."""
    idle: IdleReason | None
    tokens: TokenStatistics | None
    """None unless a part reads them in this step."""


class Part:
    """Something around the training step: a curriculum, checkpoints, progress. Hooks do nothing by default.

    A step calls `before`, `adjust`, `sampled`, `inspect`, `record`, `after` and `finish`, each on all parts in order.
    """

    name: ClassVar[str] = ""
    """Key of its state in checkpoints; empty: it has no state."""

    def state(self) -> Any:
        """Return the state as JSON values that do not change later."""

    def load_state(self, state: Any) -> None:
        """Continue from what `state` returned, in this process or read from JSON."""

    async def begin(self, step: int) -> None:
        """Start or resume after `step` steps. The state is loaded and the weights are published."""

    async def before(self, step: int) -> None:
        """Prepare the rollout of the step after `step` steps."""

    def adjust(self, settings: StepSettings) -> StepSettings:
        """Return the learner's settings of the step."""
        return settings

    async def sampled(self) -> None:
        """React to the end of sampling in this step: now the learner works."""

    def reads_tokens(self, number: int) -> bool:
        """Return whether `record` reads values of each token in step `number`."""
        return False

    def inspect(self, rollout: Rollout, estimate: Estimate | None) -> Metrics:
        """Return metrics that need passes of the model before the update. Runs in the learner's thread."""
        return {}

    def record(self, trained: TrainedStep) -> Metrics:
        """Take in an updated step and return metrics of it."""
        return {}

    def after(self, record: StepRecord) -> None:
        """Read the record of a step. Not a coroutine, so that a step is recorded completely or not at all."""

    async def finish(self, step: int) -> None:
        """Finish a step whose weights are published. No session of a synchronous run is open."""

    def diverged(self, number: int, error: Exception) -> None:
        """Report that step `number` ended with this error."""

    def stop(self, step: int) -> None:
        """Save what is needed to continue after `step` steps: training is finished or stopped."""

    async def close(self) -> None:
        """Stop what runs in the background."""


def check_finite_advantages(estimated: Estimate, setting: str, step: int) -> None:
    """Raise UserError if an advantage or a value target is NaN or infinite.

    `setting`: the one that chose the estimator; `step`: number of the training step.
    """
    for what, tensors in (("advantages", estimated.advantages), ("value targets", estimated.returns or [])):
        values = gather_sampled(estimated.samples, tensors) if tensors else torch.zeros(0)
        if bad := int((~values.isfinite()).sum()):
            raise UserError(
                f"{setting} gave {what} that are not finite (NaN or infinity) for {bad:,} of {len(values):,} sampled "
                f"tokens in step {step}. Nothing was trained on them. Return finite numbers for every sampled token."
            )
