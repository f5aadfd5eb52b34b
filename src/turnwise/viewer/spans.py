"""Spans of the actors in the steps of an asynchronous or cluster run, read from `spans.jsonl`."""

import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnwise.record.jsonl_follower import LineBlock
from turnwise.record.run_folder import SPANS_FILE
from turnwise.record.steps import finite_number
from turnwise.viewer.followed_file import FollowedFile
from turnwise.viewer.json_io import read_row
from turnwise.viewer.viewed_folder import ViewedFolder

MAX_SPAN_STEPS = 50
MAX_LINE = 4 << 20
MAX_SPANS = 20_000
"""Spans of one response; the last ones are left out."""
MAX_TEXT = 100
STEP = re.compile(rb'\{"step": ?(\d{1,12}),')


class SpanReader(FollowedFile):
    """Follows the file, and keeps only where the line of each step is. Not thread-safe."""

    def __init__(self, root: ViewedFolder, folder: Path) -> None:
        super().__init__(root, folder, (SPANS_FILE,), MAX_LINE)

    def _clear(self) -> None:
        self._steps, self._offsets, self._lengths = array("q"), array("q"), array("q")

    def read(self, last: int | None, count: int) -> dict[str, Any]:
        """Return the lanes of `count` steps up to the step `last`; None: up to the last one.

        Times are seconds since the first span. "first" and "last" are the steps that the file has.
        """
        self._read_new_lines()
        if not self._steps:
            return {"first": None, "last": None, "steps": [], "seconds": 0.0, "lanes": []}
        ends = [index for index, step in enumerate(self._steps) if last is None or step <= last] or [0]
        chosen = range(max(0, ends[-1] + 1 - count), ends[-1] + 1)
        spans = list(self._read_spans(chosen))[:MAX_SPANS]
        origin = min((start for _, _, start, _ in spans), default=0.0)
        lanes: dict[str, list[list[Any]]] = {}
        for lane, activity, start, end in spans:
            lanes.setdefault(lane, []).append([activity, round(start - origin, 3), round(end - origin, 3)])
        return {
            "first": self._steps[0],
            "last": self._steps[-1],
            "steps": [self._steps[index] for index in chosen],
            "seconds": round(max((end - origin for *_, end in spans), default=0.0), 3),
            "lanes": [{"name": name, "spans": lanes[name]} for name in sorted(lanes, key=_natural_order)],
        }

    def _add(self, block: LineBlock) -> None:
        for offset, line in zip(block.offsets(), block.lines, strict=True):
            if (step := STEP.match(line)) is not None:
                self._steps.append(int(step[1]))
                self._offsets.append(offset)
                self._lengths.append(len(line))

    def _read_spans(self, chosen: range) -> Iterator[tuple[str, str, float, float]]:
        """Yield lane, activity, start and end of each span; broken ones are left out."""
        with self._root.open(self._folder, SPANS_FILE) as file:
            for index in chosen:
                file.seek(self._offsets[index])
                row = read_row(file.read(self._lengths[index])) or {}
                spans = row.get("spans")
                for span in spans if isinstance(spans, list) else ():
                    if isinstance(span, list) and len(span) == 4:
                        start, end = finite_number(span[2]), finite_number(span[3])
                        if start is not None and end is not None and end >= start:
                            yield str(span[0])[:MAX_TEXT], str(span[1])[:MAX_TEXT], start, end


def _natural_order(name: str) -> tuple[str, int]:
    """Sort "engine replica 10" after "engine replica 2"."""
    head, _, number = name.rpartition(" ")
    return (head, int(number)) if number.isdecimal() else (name, 0)
