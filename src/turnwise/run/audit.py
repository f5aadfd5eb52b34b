"""Check a run's files: every episode that was asked for is recorded and trained on once, or is counted as dropped."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.config.load import build, read_run
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.random_streams import address
from turnwise.core.task import Task
from turnwise.record.rows import select
from turnwise.record.run_folder import RunFolder
from turnwise.record.steps import EpisodeSource, StepRecord
from turnwise.rollout.tasks import TaskSource
from turnwise.run.environment_mix import build_environment_mix, build_task_source

Problems = Iterator[str]
CHECKS: Mapping[str, str] = {
    "steps": "every step is recorded once, with its episodes",
    "asked": "every episode that was asked for is recorded, or counted as dropped",
    "tasks": "groups are of the tasks that the step draws, none of them twice",
    "members": "a group has one task, and each of its members once",
    "trained": "groups that passed the filter are trained on, and no others",
    "once": "no episode is in two steps",
    "age": "no token is from weights older than rollout.max_staleness allows",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A recorded episode, as far as it is checked."""

    group: int
    task: int
    """Hash of its task."""
    member: int
    trained: bool
    """Whether an update used any of its tokens."""
    content: int
    """Hash of its tokens, their log-probabilities and their versions."""
    oldest: int | None
    """Oldest version of the weights that sampled it; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedStep:
    record: StepRecord
    episodes: Sequence[Episode]

    @property
    def first(self) -> Sequence[Episode]:
        """Episodes of the drawn tasks. Groups of tasks that were played again are recorded behind them."""
        return [episode for episode in self.episodes if episode.group < self.record.rollout["groups"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str
    problems: Sequence[str]
    """One per step or episode; empty if nothing is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    steps: int
    episodes: int
    dropped: int
    findings: Sequence[Finding]


def audit(run: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> Audit:
    """Check the recorded training steps of a run. Raise UserError if it played no episodes, or recorded none."""
    folder, config = RunFolder.open(run), build(read_run(str(run)))
    records = [record for record in select(folder.read_records(), StepRecord) if record.source is EpisodeSource.PLAYED]
    if not records:
        raise UserError(f"{run} has no step that played episodes.")
    entries: dict[int, list[Mapping[str, Any]]] = {}
    for entry in folder.read_index():
        entries.setdefault(entry["step"], []).append(entry)
    if not entries:
        raise UserError(f"{run} recorded no episodes: record.trajectories is {config.record.trajectories}.")
    auditor = Auditor(config)
    for number, record in enumerate(records, start=1):
        episodes = [_read_episode(folder.read_trajectory(entry)) for entry in entries.get(record.step, ())]
        auditor.add(AuditedStep(record=record, episodes=episodes))
        progress(number, len(records))
    return auditor.finish()


def _read_episode(row: Mapping[str, Any]) -> Episode:
    turns = row["turns"]
    versions = [turn["policy_version"] for turn in turns if turn["policy_version"] is not None]
    known = [number for version in versions for number in (version if isinstance(version, list) else [version])]
    sampled = [[turn["action_ids"], turn["action_logprobs"]] for turn in turns]
    return Episode(
        group=row["group"],
        task=_task_hash(Task(**row["task"])),
        member=row["member"],
        trained=any(value is not None for turn in turns for value in turn["learner_logprobs"] or ()),
        content=address(row["task"]["seed"], row["member"], sampled, versions),
        oldest=min(known, default=None),
    )


def _task_hash(task: Task) -> int:
    return address(*task.parts)


class Auditor:
    """Checks steps one after the other; remembers no episode but its hash."""

    def __init__(self, config: Config) -> None:
        environments = build_environment_mix(config.env, config.agent)
        self._config = config
        self._tasks: TaskSource | None = None
        if environments.specs and not config.curriculum.pool:  # whose draws depend on results
            self._tasks = build_task_source(config, environments)
        self._may_not_act = bool(environments.roles) or config.selfplay.is_used
        self._problems: dict[str, list[str]] = {name: [] for name in CHECKS}
        self._steps: list[int] = []
        self._first_step: dict[int, int] = {}
        self._episodes = self._dropped = 0

    def add(self, step: AuditedStep) -> None:
        checks: dict[str, Callable[[AuditedStep], Problems]] = {
            "steps": self._check_step,
            "asked": self._check_asked,
            "tasks": self._check_tasks,
            "members": self._check_members,
            "trained": self._check_trained,
            "once": self._check_once,
            "age": self._check_age,
        }
        for name, check in checks.items():
            self._problems[name] += [f"step {step.record.step}: {problem}" for problem in check(step)]
        self._episodes += len(step.episodes)
        self._dropped += round(step.record.rollout.get("dropped", 0))

    def finish(self) -> Audit:
        return Audit(
            steps=len(self._steps),
            episodes=self._episodes,
            dropped=self._dropped,
            findings=[Finding(check=name, problems=problems) for name, problems in self._problems.items()],
        )

    def _check_step(self, step: AuditedStep) -> Problems:
        number, expected = step.record.step, self._steps[-1] + 1 if self._steps else 1
        self._steps.append(number)
        if number != expected:
            yield f"recorded where step {expected} should be"
        if (every := self._config.record.trajectories) and number % every == 0:
            recorded = len(step.first)
            if recorded != step.record.rollout["episodes"]:
                yield f"{recorded} episodes are recorded, of {step.record.rollout['episodes']:g}"

    def _check_asked(self, step: AuditedStep) -> Problems:
        rollout, settings = step.record.rollout, self._config.rollout
        asked = settings.groups * settings.group_size
        counted = rollout["episodes"] + rollout.get("dropped", 0)
        most = asked * (1 + self._config.algo.filter.refill_rounds)
        if self._may_not_act or self._config.algo.needs_greedy:  # some never act; greedy ones are dropped too
            if not 0 < counted <= 2 * most:
                yield f"{counted:g} episodes were played or dropped, and at most {most} asked for"
        elif counted % asked or not asked <= counted <= most:
            yield f"{counted:g} episodes were played or dropped, and {asked} asked for at a time"

    def _check_tasks(self, step: AuditedStep) -> Problems:
        if self._tasks is None or not step.episodes:
            return
        drawn = Counter(map(_task_hash, self._draw(step.record)))
        groups = {episode.group: episode.task for episode in step.first}
        for task, times in Counter(groups.values()).items():
            if times > drawn[task]:
                yield f"{times} groups of a task that the step draws {drawn[task]} times"

    def _draw(self, record: StepRecord) -> list[Task]:
        """Draw all tasks that the step may have asked for, as the source does."""
        assert self._tasks is not None
        rounds = 1 + self._config.algo.filter.refill_rounds
        return self._tasks.draw(record.step - 1, self._config.rollout.groups * rounds)

    def _check_members(self, step: AuditedStep) -> Problems:
        groups: dict[int, list[Episode]] = {}
        for episode in step.episodes:
            groups.setdefault(episode.group, []).append(episode)
        for number, members in groups.items():
            if len({episode.task for episode in members}) > 1:
                yield f"group {number} has several tasks"
            if len({episode.member for episode in members}) < len(members):
                yield f"group {number} has a member twice"
            if len(members) > self._config.rollout.group_size:
                yield f"group {number} has {len(members)} members, of {self._config.rollout.group_size}"

    def _check_trained(self, step: AuditedStep) -> Problems:
        trained = {episode.group for episode in step.episodes if episode.trained}
        kept = step.record.rollout.get("kept_groups")
        if kept is not None and len(trained) > kept:
            yield f"{len(trained)} groups are trained on, and {kept:g} passed the filter"
        algo = self._config.algo
        if algo.truncated != "drop" and algo.loss_tokens == "sampled" and kept is not None and 0 < len(trained) < kept:
            yield f"{len(trained)} groups are trained on, of {kept:g} that passed the filter"

    def _check_once(self, step: AuditedStep) -> Problems:
        for episode in step.episodes:
            before = self._first_step.setdefault(episode.content, step.record.step)
            if before != step.record.step:
                yield f"group {episode.group}, member {episode.member} is in step {before} too"

    def _check_age(self, step: AuditedStep) -> Problems:
        ages = [step.record.step - 1 - episode.oldest for episode in step.episodes if episode.oldest is not None]
        allowed = self._config.rollout.max_staleness
        if ages and max(ages) > allowed:
            yield f"tokens of weights {max(ages)} steps old, and rollout.max_staleness is {allowed}"
