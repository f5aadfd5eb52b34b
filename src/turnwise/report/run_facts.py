"""Facts about a run, read from its folder; `explain.py` puts them into words."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from turnwise.core.errors import UserError
from turnwise.files.run_folders import METRICS_FILE
from turnwise.record.jsonl_follower import LineFollower
from turnwise.record.rows import AFTER, BEFORE, EVALUATION_NAME, EvaluationRecord, read_record, select
from turnwise.record.run_folder import ALARMS_FILE
from turnwise.record.steps import StepRecord, finite_number
from turnwise.text.json_objects import parse_object

OpenFile = Callable[..., BinaryIO]
"""Opens a file of the run by the parts of its name; OSError or UserError if it cannot."""
Row = Mapping[str, Any]
TaskKey = tuple[str, int]
"""Environment and seed."""

EXPLAINED_METRICS = (
    "rollout/success",
    "rollout/zero_std_groups",
    "rollout/length_stops",
    "rollout/dropped",
    "rollout/episodes",
    "train/entropy",
)
"""Metrics of training steps that `explain.py` uses; a long run has too many to keep all in memory."""
READ_METRICS = {*EXPLAINED_METRICS, *(name.replace("rollout/", "data/") for name in EXPLAINED_METRICS)}
"""Their names in the file, also those of stored episodes."""
MAX_EPISODES = 200
"""Episodes that are read for the behaviour on each side."""
MAX_READ = 256 << 20
"""Bytes of a file that are read: a sparse or endless file must not hang the viewer."""
MAX_BYTES = 24 << 20
"""Bytes of these episodes: a few of them may be very long."""
MAX_LINE = 8 << 20
MAX_ACTION = 40
"""Characters of an action: longer ones are answers, not choices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """Counts of the agent's actions in some episodes."""

    episodes: int = 0
    turns: int = 0
    tokens: int = 0
    """Sampled tokens."""
    invalid: int = 0
    """Turns whose action was invalid."""
    actions: Mapping[str, int]
    """Actions by name."""
    tools: Mapping[str, int]
    """Calls by tool."""
    failed_calls: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    steps: Sequence[StepRecord]
    evaluations: Mapping[str, EvaluationRecord]
    """The evaluations before and after training, those that are recorded."""
    outcomes: Mapping[str, Mapping[TaskKey, str]]
    """Status of the first episode of each task in the evaluations before and after training."""
    sides: tuple[str, str]
    """Times of the compared episodes: "before training" and "after it", or in the first and last steps."""
    behaviours: tuple[Behaviour, Behaviour] | None
    """Behaviour on both sides; None without recorded episodes."""
    alarms: Sequence[tuple[int, str]]
    """Step and text."""
    finished: bool


def read_facts(open_file: OpenFile, *, finished: bool) -> RunFacts:
    """Read the facts of a run. Missing and broken files leave gaps."""
    records = [
        record.keep(EXPLAINED_METRICS) if isinstance(record, StepRecord) else record
        for row in _read_rows(open_file, METRICS_FILE)
        if (record := read_record(_thin(row))) is not None
    ]
    evaluations = {record.name: record for record in select(records, EvaluationRecord)}
    chosen = _choose_episodes(_read_rows(open_file, "trajectories", "index.jsonl"))
    sides, behaviours = ("before training", "after it"), None
    early, late = chosen.evaluated[BEFORE], chosen.evaluated[AFTER]
    if not (early and late):
        steps = sorted(chosen.trained)
        sides = (f"in step {steps[0]}", f"in step {steps[-1]}") if steps else sides
        early, late = (chosen.trained[steps[0]], chosen.trained[steps[-1]]) if len(steps) > 1 else ([], [])
    if early and late:
        measure = partial(_measure_behaviour, open_file)
        behaviours = measure(early), measure(late)
    return RunFacts(
        steps=select(records, StepRecord),
        evaluations=evaluations,
        outcomes={name: _outcomes(entries) for name, entries in chosen.evaluated.items()},
        sides=sides,
        behaviours=behaviours,
        alarms=[
            (row["step"], row["text"])
            for row in _read_rows(open_file, ALARMS_FILE)
            if isinstance(row.get("step"), int) and isinstance(row.get("text"), str)
        ],
        finished=finished,
    )


def files_of(run: Path) -> OpenFile:
    return lambda *parts: run.joinpath(*parts).open("rb")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    evaluated: Mapping[str, list[Row]]
    trained: Mapping[int, list[Row]]
    """Index entries of the first and the last recorded step."""


def _choose_episodes(index: Iterable[Row]) -> _Chosen:
    """Keep the entries of the evaluations and of two steps: the index of a long run has many."""
    evaluated: dict[str, list[Row]] = {BEFORE: [], AFTER: []}
    trained: dict[int, list[Row]] = {}
    for row in index:
        step, evaluation = row.get("step"), row.get("evaluation")
        if not isinstance(step, int):
            continue
        if evaluation in evaluated:
            evaluated[evaluation].append(row)
        elif evaluation is None:
            trained.setdefault(step, []).append(row)
            if len(trained) > 2:
                del trained[sorted(trained)[1]]
    return _Chosen(evaluated=evaluated, trained=trained)


def _outcomes(entries: Iterable[Row]) -> dict[TaskKey, str]:
    outcomes: dict[TaskKey, str] = {}
    for row in entries:
        if isinstance(row.get("seed"), int):
            outcomes.setdefault((str(row.get("environment")), row["seed"]), str(row.get("status")))
    return outcomes


def _measure_behaviour(open_file: OpenFile, entries: Sequence[Row]) -> Behaviour:
    """Count actions, tools, turns and tokens in some of the episodes, the same ones each time."""
    some = list(entries) if len(entries) <= MAX_EPISODES else random.Random(0).sample(list(entries), MAX_EPISODES)
    actions, tools, totals = Counter[str](), Counter[str](), Counter[str]()
    for episode in _read_episodes(open_file, some):
        totals["episodes"] += 1
        for turn in _dicts(episode.get("turns")):
            info = turn["info"] if isinstance(turn.get("info"), dict) else {}
            if info.get("summary") is True:
                continue
            totals["turns"] += 1
            totals["tokens"] += len(turn["action_ids"]) if isinstance(turn.get("action_ids"), list) else 0
            totals["invalid"] += turn.get("invalid") is True
            names = info["actions"] if isinstance(info.get("actions"), list) else []
            actions.update(name for name in names if isinstance(name, str) and len(name) <= MAX_ACTION)
            for call in _dicts(info.get("calls")):
                tools[str(call.get("name"))[:MAX_ACTION]] += 1
                totals["failed_calls"] += call.get("failed") is True
    return Behaviour(actions=actions, tools=tools, **totals)


def _read_episodes(open_file: OpenFile, entries: Iterable[Row]) -> Iterator[Row]:
    """Yield the stored episodes of index entries, until they are MAX_BYTES."""
    left = MAX_BYTES
    for entry in sorted(entries, key=lambda row: (row["step"], finite_number(row.get("offset")) or 0.0)):
        offset, length = entry.get("offset"), entry.get("length")
        if not (isinstance(offset, int) and isinstance(length, int) and offset >= 0 and 0 < length <= left):
            continue
        left -= length
        evaluation = entry.get("evaluation")
        name = f"{'step' if evaluation is None else f'eval_{evaluation}'}_{entry['step']:06d}.jsonl"
        try:
            with open_file("trajectories", name) as file:
                file.seek(offset)
                row = parse_object(file.read(length))
        except (OSError, UserError):
            continue
        if row is not None:
            yield row


def _read_rows(open_file: OpenFile, *parts: str) -> Iterator[Row]:
    lines = LineFollower(MAX_LINE)
    try:
        with open_file(*parts) as file:
            for block in lines.read_blocks(file, MAX_READ):
                yield from (row for line in block.lines if (row := parse_object(line)) is not None)
    except (OSError, UserError):
        return


def _thin(row: Row) -> Row:
    """Return the row of a step without the dozens of metrics that no rule reads: a long run is explained faster."""
    if EVALUATION_NAME in row or READ_METRICS.isdisjoint(row):
        return row
    return {name: value for name, value in row.items() if "/" not in name or name in READ_METRICS}


def _dicts(value: Any) -> Iterator[Row]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())
