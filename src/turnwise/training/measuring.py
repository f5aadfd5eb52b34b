"""What a loop measures besides learning: time, and success on held-out tasks."""

import time
from collections.abc import Callable, Sequence

from turnwise.core.task import Task
from turnwise.core.trajectory import Trajectory
from turnwise.evaluation.run import Evaluation, evaluate
from turnwise.record.run_folder import RunFolder
from turnwise.report.progress import Progress
from turnwise.rollout.collect import Collector


async def measure(
    evaluator: Collector, tasks: Sequence[Task], folder: RunFolder, progress: Progress, *, name: str, step: int
) -> Evaluation:
    """Evaluates, and records it as the evaluation of that name."""
    clock = Clock()
    found = await evaluate(evaluator, tasks, lambda done, total: progress.phase(name, done, total))
    clock.lap("eval")
    row = {"step": step, "eval/name": name, **found.metrics(), **by_environment(found.trajectories), **clock.metrics()}
    folder.append_metrics(row)
    return found


def by_environment(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Success in each environment, where there are several."""
    names = sorted({trajectory.task.env for trajectory in trajectories})
    own = {name: [each.status.succeeded for each in trajectories if each.task.env == name] for name in names}
    return {f"eval/success/{name}": sum(won) / len(won) for name, won in own.items()} if len(names) > 1 else {}


class Clock:
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
