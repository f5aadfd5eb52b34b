"""Self-play: snapshots of the policy as opponents in training and in a ladder of Elo ratings."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.core.learner import Learner
from turnwise.core.protocols import Engine
from turnwise.core.random_streams import address
from turnwise.core.task import Task
from turnwise.core.trajectory import Trajectory
from turnwise.evaluation.statistics import MatchScore, performance_rating
from turnwise.files.disk import atomic_folder, remove_folder, remove_leftovers
from turnwise.models.loading.load import LoadedModel
from turnwise.record.rows import LadderRecord, select
from turnwise.record.run_folder import RunFolder
from turnwise.report.progress import Progress
from turnwise.rollout.selfplay import MatchCollector
from turnwise.training.checkpoints import Checkpoints, step_folders, step_of
from turnwise.training.step import Part
from turnwise.training.step_record import StepTimer

POINTS = {"win": 1.0, "draw": 0.5, "loss": 0.0}
START_ELO = 0.0
"""Rating of the initial policy."""


class Snapshots:
    def __init__(self, folder: Path, *, every: int, keep: int, tokenizer: Any) -> None:
        self.folder, self.every, self.keep = folder, every, keep
        self._tokenizer = tokenizer

    def path(self, step: int) -> Path:
        return self.folder / f"step_{step:06d}"

    def due(self, step: int) -> bool:
        return step % self.every == 0

    def at(self, step: int) -> list[int]:
        """Return the steps of the latest `keep` snapshots after `step` steps, oldest first."""
        newest = step // self.every * self.every
        first = newest - (self.keep - 1) * self.every
        return list(range(max(first, 0), newest + 1, self.every))

    def before(self, step: int) -> list[int]:
        """Return the steps of the latest `keep` snapshots before `step`, oldest first."""
        return self.at(step - 1)

    def save(self, learner: Learner, step: int) -> None:
        """Write the snapshot of a step, once; it is complete or not there."""
        if not self.path(step).exists():
            with atomic_folder(self.path(step)) as aside:
                learner.save_model(aside, self._tokenizer)

    def drop_after(self, step: int) -> None:
        """Delete snapshots of steps that a resumed run repeats, and leftovers of kills."""
        remove_leftovers(self.folder)
        self._drop(path for path in self._found() if step_of(path) > step)

    def drop_unneeded(self, oldest: int) -> None:
        """Delete snapshots that are not used by a run that resumes from the step `oldest`."""
        needed = min(self.before(oldest), default=0)
        self._drop(path for path in self._found() if step_of(path) < needed)

    def _found(self) -> list[Path]:
        return step_folders(self.folder)

    @staticmethod
    def _drop(folders: Iterable[Path]) -> None:
        for folder in folders:
            remove_folder(folder)


class FrozenPolicy:
    """Opponent that is not trained: one snapshot at a time, in an engine with separate weights."""

    def __init__(self, engine: Engine, load_model: Callable[[str], LoadedModel]) -> None:
        self.engine, self._load_model = engine, load_model
        self._snapshot: Path | None = None

    async def load(self, folder: Path) -> None:
        if folder != self._snapshot:
            await self.engine.publish(step_of(folder), self._load_model(str(folder)).model)
            self._snapshot = folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    collector: MatchCollector
    """Plays the current policy against the frozen one."""
    tasks: Sequence[Task]
    """One game each against every snapshot; the players take turns to begin."""


class Opponents(Part):
    """Saves snapshots when due, chooses the opponent of each step, and rates snapshots on the ladder."""

    def __init__(
        self,
        *,
        snapshots: Snapshots,
        frozen: FrozenPolicy | None,
        trained_against: bool,
        ladder: Ladder | None,
        learner: Learner,
        run_seed: int,
        checkpoints: Checkpoints,
        folder: RunFolder,
        progress: Progress,
    ) -> None:
        self.snapshots, self.frozen, self.trained_against, self.ladder = snapshots, frozen, trained_against, ladder
        self.learner, self.run_seed = learner, run_seed
        self.checkpoints, self.folder, self.progress = checkpoints, folder, progress

    async def begin(self, step: int) -> None:
        """Start or resume at a step: delete snapshots of later steps."""
        self.snapshots.drop_after(step)
        await self.finish(step)

    async def before(self, step: int) -> None:
        """Load the opponent of this step: one of the last snapshots, drawn at random."""
        if self.frozen is not None and self.trained_against:
            known = self.snapshots.at(step)
            await self.frozen.load(self.snapshots.path(known[address("rival", self.run_seed, step) % len(known)]))

    async def finish(self, step: int) -> None:
        """Save the step's snapshot and rate it if due, unless a killed run already did."""
        if not self.snapshots.due(step):
            return
        self.snapshots.save(self.learner, step)
        rungs = self.snapshots.before(step)
        if self.ladder is not None and rungs and step not in self._ratings():
            await self._rate(self.ladder, step, rungs)
        self.snapshots.drop_unneeded(min(map(step_of, self.checkpoints.steps()), default=step))

    async def _rate(self, ladder: Ladder, step: int, rungs: Sequence[int]) -> None:
        """Play against the snapshots of the steps `rungs`, and record scores and rating."""
        timer, ratings = StepTimer(), self._ratings()
        scores, shares = list[MatchScore](), dict[str, float]()
        for number, rung in enumerate(rungs):
            points = await self._points(ladder, step, rung, number * len(ladder.tasks), len(rungs) * len(ladder.tasks))
            scores.append(MatchScore(opponent=ratings.get(rung, START_ELO), points=sum(points), games=len(points)))
            shares[f"score/{self.snapshots.path(rung).name}"] = sum(points) / len(points)
        timer.lap("ladder")
        games = sum(score.games for score in scores)
        metrics = {
            "elo": performance_rating(scores),
            "score": sum(score.points for score in scores) / games,
            "games": games,
            **shares,
        }
        self.folder.append_metrics(LadderRecord(step=step, metrics=metrics, time=timer.seconds()))

    async def _points(self, ladder: Ladder, step: int, rung: int, done: int, total: int) -> list[float]:
        assert self.frozen is not None
        await self.frozen.load(self.snapshots.path(rung))
        collected = await ladder.collector.collect(
            ladder.tasks,
            group_size=1,
            round=step,
            progress=lambda more, _: self.progress.phase("ladder", done + more, total),
        )
        return [points_of(trajectory) for group in collected.groups for trajectory in group.trajectories]

    def _ratings(self) -> dict[int, float]:
        """Read the ratings of snapshots, by step, from the run's metrics."""
        return {record.step: record.metrics["elo"] for record in select(self.folder.read_records(), LadderRecord)}


def points_of(trajectory: Trajectory) -> float:
    """Return the points of a game; a truncated episode is a loss."""
    result = trajectory.turns[-1].info.get("result", "loss") if trajectory.turns else "loss"
    return POINTS[result]
