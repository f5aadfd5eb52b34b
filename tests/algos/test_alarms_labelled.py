"""Precision and recall of the alarms over real runs, each labelled by what was wrong with it.

A file of tests/data/alarms/labelled has the command of a run, what was broken (null: nothing), the kinds of alarm that
name it, and the metrics that alarms read, to three digits. Labels do not come from alarms: a run is broken by its
command, or stalled by its result on held-out tasks.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from test_alarms import Rows, alarms_of, kinds

FILES = sorted((Path(__file__).parents[1] / "data" / "alarms" / "labelled").glob("*.json"))
MISSED = {"cold", "lake_retry", "lake_unsolved"}
"""Broken runs without an alarm that names it. The first was deterministic from its start on; the others stalled at 83
and 84 %, which counts as nearly solved."""
FALSE = {"tiny_0.6"}
"""Healthy runs with an alarm: a single gradient spike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRun:
    broken: bool
    expected: frozenset[str]
    """Kinds of alarm that name what is broken."""
    raised: frozenset[str]
    """Kinds of alarm that it raises."""


def read(path: Path) -> LabelledRun:
    run = json.loads(path.read_text())
    raised = kinds(alarms_of(rows_of(run["metrics"])))
    return LabelledRun(broken=run["broken"] is not None, expected=frozenset(run["expected"]), raised=frozenset(raised))


def rows_of(columns: dict[str, list[float | None]]) -> Rows:
    return [
        {"step": step + 1} | {name: values[step] for name, values in columns.items() if values[step] is not None}
        for step in range(len(columns["rollout/success"]))
    ]


def test_precision_and_recall_of_alarms() -> None:
    runs = {path.stem: read(path) for path in FILES}
    broken = {name for name, run in runs.items() if run.broken}
    named = {name for name, run in runs.items() if run.raised & run.expected}
    alarmed_healthy = {name for name, run in runs.items() if run.raised and not run.broken}
    assert broken - named == MISSED and alarmed_healthy == FALSE
    precision, recall = len(named) / (len(named) + len(alarmed_healthy)), len(named) / len(broken)
    assert (len(runs), len(broken)) == (20, 10)
    assert (precision, recall) == (7 / 8, 7 / 10)
