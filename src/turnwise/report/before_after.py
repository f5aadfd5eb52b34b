"""One task before and after training, side by side: which task a report shows, and the sentence above it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.record.rows import AFTER, BEFORE
from turnwise.record.steps import finite_number
from turnwise.report.episodes import SUCCEEDED, EpisodeView
from turnwise.report.formatting import format_decimal

Entry = Mapping[str, Any]
"""Index entry of an episode."""
TaskKey = tuple[str, int]
"""Environment and seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    before: Entry
    after: Entry
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairView:
    sentence: str
    sides: tuple[EpisodeView, EpisodeView]


def choose_pair(index: Iterable[Entry]) -> Pair | None:
    """Choose a task of the evaluations before and after training, or of the first and the last recorded step.

    The first of: a task that training solved; one that it lost; the one whose reward rose most. None without a common
    task.
    """
    evaluated: dict[str, dict[TaskKey, Entry]] = {BEFORE: {}, AFTER: {}}
    trained: dict[int, dict[TaskKey, Entry]] = {}
    for entry in index:
        task, step, evaluation = _task(entry), entry.get("step"), entry.get("evaluation")
        if task is None or not isinstance(step, int):
            continue
        if evaluation in evaluated:
            evaluated[evaluation].setdefault(task, entry)
        elif evaluation is None:
            trained.setdefault(step, {}).setdefault(task, entry)
            if len(trained) > 2:
                del trained[sorted(trained)[1]]
    if evaluated[BEFORE].keys() & evaluated[AFTER].keys():
        return _choose(evaluated[BEFORE], evaluated[AFTER], ("before training", "after training"))
    if len(trained) < 2:
        return None
    first, last = sorted(trained)
    return _choose(trained[first], trained[last], (f"in step {first}", f"in step {last}"))


def _task(entry: Entry) -> TaskKey | None:
    seed = entry.get("seed")
    return (str(entry.get("environment")), seed) if isinstance(seed, int) else None


def _choose(before: Mapping[TaskKey, Entry], after: Mapping[TaskKey, Entry], sides: tuple[str, str]) -> Pair | None:
    common = sorted(before.keys() & after.keys())
    solved = [task for task in common if not _succeeded(before[task]) and _succeeded(after[task])]
    lost = [task for task in common if _succeeded(before[task]) and not _succeeded(after[task])]
    if not common:
        return None
    task = (solved or lost or sorted(common, key=lambda task: _reward(before[task]) - _reward(after[task])))[0]
    count = f"{len(common)} tasks" if len(common) > 1 else "1 task"
    result = f"Of {count}, {len(solved)} {'is' if len(solved) == 1 else 'are'} solved only {sides[1]}"
    result += f" and {len(lost)} only {sides[0]}."
    shown = f"The task with seed {task[1]} {_describe(before[task], sides[0])} and {_describe(after[task], sides[1])}."
    return Pair(before=before[task], after=after[task], sentence=f"{result} {shown}")


def _describe(entry: Entry, when: str) -> str:
    """Describe an outcome, such as "succeeded in step 9 with reward 0.50"."""
    return f"{'succeeded' if _succeeded(entry) else 'failed'} {when} with reward {format_decimal(_reward(entry))}"


def _succeeded(entry: Entry) -> bool:
    return entry.get("status") == SUCCEEDED


def _reward(entry: Entry) -> float:
    return finite_number(entry.get("reward")) or 0.0


def view_pair(pair: Pair | None, view: Callable[[Entry, str], EpisodeView | None]) -> PairView | None:
    """Return what the report shows; None if an episode cannot be read. `view` reads an entry under a heading."""
    if pair is None:
        return None
    before, after = view(pair.before, "Before"), view(pair.after, "After")
    return None if before is None or after is None else PairView(sentence=pair.sentence, sides=(before, after))
