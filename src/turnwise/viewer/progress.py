"""How far a run is and what came of it, from its metrics: a handful of numbers, whatever the length of the run."""

import math
import os
from collections.abc import Mapping
from typing import Any

from turnwise.viewer.lines import read_row
from turnwise.viewer.root import NotThere
from turnwise.viewer.rows import METRICS, RowReader

OUTSIDE = ("before", "after")
"""Evaluations that are no part of training: their time does not count, as in the run's summary."""
INTERVAL = ("eval/success", "eval/success_low", "eval/success_high")


TAIL = 16 << 10
"""Bytes at the end of a file that say how far a run is, before the file is read."""


class Progress(RowReader):
    """Takes each row of `metrics.jsonl` once."""

    @property
    def caught_up(self) -> bool:
        return self._follower.caught_up

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

    def read_tail(self) -> None:
        """Take the last rows alone, for the step and the success. Time and tokens, sums over all rows, stay unknown."""
        self._start_again()
        try:
            with self._root.open(self._folder, METRICS) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - TAIL))
                lines = file.read(TAIL).split(b"\n")
        except NotThere:
            return
        for line in lines[1 if size > TAIL else 0 : -1]:
            self._add(read_row(line))
        self.wall_s = self.tokens = None

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
