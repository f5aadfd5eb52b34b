"""How far a run is and what came of it, from its metrics: a handful of numbers, whatever the length of the run."""

import math
from collections.abc import Mapping
from typing import Any

from turnwise.view.rows import RowReader

MISSING = -1.0
OUTSIDE = ("before", "after")
"""Evaluations that are no part of training: their time does not count, as in the run's summary."""
INTERVAL = ("eval/success", "eval/success_low", "eval/success_high")


class Progress(RowReader):
    """Takes each row of `metrics.jsonl` once."""

    def _forget(self) -> None:
        self.step: int | None = None
        self.wall_s: float | None = None
        self.tokens: int | None = None
        self.imitates = False
        self._broken = 0
        self._evaluated: tuple[float | None, ...] | None = None
        self._rollout: float | None = None

    @property
    def broken(self) -> int:
        return self._broken + self._follower.too_long

    def _add(self, row: Mapping[str, Any] | None) -> None:
        step = None if row is None else row.get("step")
        if row is None or type(step) is not int:
            self._broken += 1
            return
        self.step = step
        self.imitates = self.imitates or "sft/digest" in row
        for name in ("time/total_s", "time/warmup_s") if row.get("eval/name") not in OUTSIDE else ():
            if (seconds := finite(row.get(name))) is not None:
                self.wall_s = (self.wall_s or 0.0) + seconds
        for name in ("rollout/sampled_tokens", "train/answer_tokens"):
            if (tokens := finite(row.get(name))) is not None:
                self.tokens = (self.tokens or 0) + int(tokens)
        if INTERVAL[0] in row:
            self._evaluated = tuple(finite(row.get(name)) for name in INTERVAL)
        self._rollout = finite(row.get("rollout/success", self._rollout))

    def success(self) -> dict[str, float | None]:
        """Of the last evaluation, with its interval; before there is one, of the last step's episodes."""
        low, high = None, None
        success = self._rollout
        if self._evaluated is not None:
            success, low, high = self._evaluated
        return {"success": success, "success_low": low, "success_high": high}


def finite(value: object) -> float | None:
    """A number that can be added up; None for all else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number beyond all floats
        return None
