"""Alarms while a run goes on: told in one line, and answered by going back where that is wanted."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from turnwise.algos.alarms import AlarmSettings, watch
from turnwise.training.checkpoints import Checkpoints, State, read_state
from turnwise.training.learner import LocalLearner

RATE_CUT = 0.5
"""What the learning rate is multiplied by at each rollback."""


class Watcher:
    """Sees every row of the metrics. What it remembers follows from them, so a resumed run raises the same alarms."""

    def __init__(self, tell: Callable[[int, str], None], settings: AlarmSettings | None = None) -> None:
        self._tell, self._settings = tell, settings or AlarmSettings()
        self._rows: list[dict[str, Any]] = []
        self._active: frozenset[str] = frozenset()

    def begin(self, rows: Sequence[dict[str, Any]], state: State) -> None:
        """Takes in what a resumed run has recorded so far, without telling it again."""
        self._rows, self._active = [], frozenset()
        for row in rows:
            if "rollout/success" in row and row["step"] > state.watched_from:
                self._rows.append(row | dict.fromkeys(row.get("nonfinite", ()), math.nan))
                self._active = watch(self._rows, self._active, self._settings).active

    def see(self, row: dict[str, Any]) -> bool:
        """Whether a new alarm was raised by this row."""
        self._rows.append(row)
        found = watch(self._rows, self._active, self._settings)
        self._active = found.active
        for alarm in found.raised:
            self._tell(row["step"], alarm.message)
        return bool(found.raised)


def roll_back(
    state: State, learner: LocalLearner, checkpoints: Checkpoints, restore: Callable[[str, State], None]
) -> State | None:
    """The weights of the oldest regular checkpoint that is kept, with a smaller step; None where there is none.

    Steps go on being counted: what was rolled back was done, and stays in the metrics. Its checkpoints are given up, so
    that the next rollback does not lead to them.
    """
    kept = checkpoints.regular()
    if not kept:
        return None
    restore(str(kept[0]), read_state(kept[0]))
    checkpoints.drop_after(kept[0])
    learner.training_step, learner.skipped_steps = state.step, state.skipped_steps
    return replace(
        state, rate_scale=RATE_CUT * state.rate_scale, rollbacks=state.rollbacks + 1, watched_from=state.step
    )
