"""What a loop measures besides learning: time, and success on held-out tasks."""

import math
import time
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from turnwise.core.samples import Batch, Sample, TrainSample
from turnwise.core.task import Task
from turnwise.core.trajectory import Group, Trajectory
from turnwise.evaluation.episodes import Evaluation, evaluate
from turnwise.record.run_folder import RunFolder
from turnwise.record.trajectories import TOKEN_COLUMNS, trajectory_to_row
from turnwise.report.progress import Progress
from turnwise.rollout.collect import Collector
from turnwise.training.estimate import Estimate

TOKEN_SCORES = {"token_logprobs": "learner_logprobs", "token_entropies": "entropies"}
"""What `forward_backward` returns one of a token, and the name under which it is recorded."""


class TokenStatistics:
    """By sample; the samples must live as long as this does."""

    def __init__(self) -> None:
        self._columns: dict[int, dict[str, Tensor]] = {}

    def add(self, samples: Sequence[TrainSample], batch: Batch, found: Mapping[str, Tensor]) -> None:
        """Of a later epoch nothing is kept: the policy has learnt from the token by then."""
        for scores, name in TOKEN_SCORES.items():
            if scores in found:  # a critic that learns alone sees no log-probabilities
                for index, values in zip(batch.order, found[scores].split(batch.counts), strict=True):
                    self._columns.setdefault(id(samples[index].sample), {}).setdefault(name, values)

    def of(self, sample: Sample) -> dict[str, Tensor]:
        """[K] each, of its sampled tokens; nothing where it was left out."""
        return {name: values.cpu() for name, values in self._columns.get(id(sample), {}).items()}


async def evaluate_and_record(
    evaluator: Collector, tasks: Sequence[Task], folder: RunFolder, progress: Progress, *, name: str, step: int
) -> Evaluation:
    """Evaluates, and records it as the evaluation of that name."""
    clock = StepTimer()
    found = await evaluate(evaluator, tasks, lambda done, total: progress.phase(name, done, total))
    clock.lap("eval")
    row = {"step": step, "eval/name": name, **found.metrics(), **by_environment(found.trajectories), **clock.metrics()}
    folder.append_metrics(row)
    return found


def recorded_success(folder: RunFolder, step: int) -> float | None:
    """Return the success of a validation that the metrics have of this step, or None."""
    for row in folder.read_metrics():
        if row.get("eval/name") == "validation" and row["step"] == step:
            return math.nan if row["eval/success"] is None else float(row["eval/success"])
    return None


def by_environment(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Success in each environment, where there are several."""
    names = sorted({trajectory.task.env for trajectory in trajectories})
    own = {name: [each.status.succeeded for each in trajectories if each.task.env == name] for name in names}
    return {f"eval/success/{name}": sum(won) / len(won) for name, won in own.items()} if len(names) > 1 else {}


class StepTimer:
    """Times of the phases of a step."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._began = self._last = now()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = self._now()
        self._laps[name] = now - self._last
        self._last = now

    def metrics(self, tokens: float | None = None) -> dict[str, float]:
        total = self._now() - self._began
        out = {f"time/{name}_s": seconds for name, seconds in self._laps.items()} | {"time/total_s": total}
        return out if tokens is None else out | {"time/tokens_per_s": tokens / total}


TurnColumns = dict[str, list[list[float] | None]]


def trajectory_rows(
    number: int,
    groups: Sequence[Group],
    estimated: Estimate | None,
    decode: Callable[[Sequence[int]], str],
    seen: TokenStatistics | None = None,
) -> list[dict[str, object]]:
    """All trajectories of a step; those that were trained on with the numbers of their tokens."""
    columns = {} if estimated is None else _columns(estimated, seen or TokenStatistics())
    return [
        trajectory_to_row(
            trajectory, step=number, group=group_number, decode=decode, columns=columns.get(id(trajectory), {})
        )
        for group_number, group in enumerate(groups)
        for trajectory in group.trajectories
    ]


def _columns(estimated: Estimate, seen: TokenStatistics) -> dict[int, TurnColumns]:
    """By trajectory."""
    found: dict[int, TurnColumns] = {}
    for index, sample in enumerate(estimated.samples):
        trajectory = estimated.trajectories[sample.trajectory]
        own = found.setdefault(id(trajectory), {name: [None] * len(trajectory.turns) for name in TOKEN_COLUMNS})
        known = {"advantages": estimated.advantages[index][sample.mask], "loss_mask": estimated.loss_masks[index].int()}
        for name, values in (known | seen.of(sample)).items():
            for turn, part in _by_turn(sample, values):
                own[name][turn] = part
    return found


def _by_turn(sample: Sample, values: Tensor) -> list[tuple[int, list[float]]]:
    """`values`: one a sampled token."""
    turns, counts = sample.turn_ids[sample.mask].unique_consecutive(return_counts=True)
    parts = values.split(counts.tolist())
    return [(turn, part.tolist()) for turn, part in zip(turns.tolist(), parts, strict=True)]
