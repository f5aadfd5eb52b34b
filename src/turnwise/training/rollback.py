"""Watch the metrics for alarms, and roll back to an earlier checkpoint when one is raised."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from turnwise.algos.alarms import AlarmSettings, check_alarms
from turnwise.training.checkpoints import Checkpoints, State, read_state

RATE_CUT = 0.5
"""Factor of the learning rate at each rollback."""


class AlarmWatcher:
    """Look for alarms in every row of the metrics. Its state follows from the rows: a resumed run agrees."""

    def __init__(self, report: Callable[[int, str], None], settings: AlarmSettings | None = None) -> None:
        self._report, self._settings = report, settings or AlarmSettings()
        self._rows: list[dict[str, Any]] = []
        self._active: frozenset[str] = frozenset()

    def begin(self, rows: Sequence[dict[str, Any]], state: State) -> None:
        """Take in the rows that a resumed run has recorded, without reporting their alarms again."""
        self._rows, self._active = [], frozenset()
        for row in rows:
            if "rollout/success" in row and row["step"] > state.watched_from:
                self._rows.append(row | dict.fromkeys(row.get("nonfinite", ()), math.nan))
                self._active = check_alarms(self._rows, self._active, self._settings).active

    def raises_alarm(self, row: dict[str, Any]) -> bool:
        """Take in one more row and report the alarms that it raises."""
        self._rows.append(row)
        found = check_alarms(self._rows, self._active, self._settings)
        self._active = found.active
        for alarm in found.raised:
            self._report(row["step"], alarm.message)
        return bool(found.raised)


def roll_back(state: State, checkpoints: Checkpoints, restore: Callable[[str, State], None]) -> State | None:
    """Restore the oldest regular checkpoint and halve the learning rate; None where there is no checkpoint yet.

    The step count continues: the steps that were undone stay in the metrics. Their checkpoints are deleted, so that the
    next rollback does not lead to them.
    """
    kept = checkpoints.regular()
    if not kept:
        return None
    restore(str(kept[0]), replace(read_state(kept[0]), skipped_steps=state.skipped_steps))
    checkpoints.drop_after(kept[0])
    return replace(
        state, rate_scale=RATE_CUT * state.rate_scale, rollbacks=state.rollbacks + 1, watched_from=state.step
    )
