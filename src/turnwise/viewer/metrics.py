"""Readers of `metrics.jsonl` that follow the file as it grows, and of `alarms.jsonl`."""

import math
import secrets
from abc import abstractmethod
from array import array
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from turnwise.files.file_end import read_last_lines
from turnwise.files.run_folders import METRICS_FILE
from turnwise.record.jsonl_follower import LineBlock
from turnwise.record.rows import EvaluationRecord, SetUpRecord, read_record, training_s
from turnwise.record.steps import StepRecord, finite_number, metric_name
from turnwise.viewer.followed_file import FollowedFile
from turnwise.viewer.json_io import read_number, read_row
from turnwise.viewer.viewed_folder import FileNotServed, ViewedFolder, is_unicode

ALARMS = "alarms.jsonl"
MAX_LINE = 1 << 20
MAX_COLUMNS = 1000
"""Further metrics are dropped, so that a file with a new name on each line does not fill the memory."""
MAX_TEXT = 200
TAIL_BYTES = 16 << 10
"""Bytes at the end of the file that describe a run's progress until the whole file is read."""
MAX_ALARM_BYTES = 4 << 20
MAX_ALARM_TEXT = 2000
MAX_READ = 256 << 20
"""Bytes of metrics that one request reads: a sparse or endless file must not block it."""


class MetricsReader(FollowedFile):
    """Passes each row of `metrics.jsonl` to `_add_row` once. Not thread-safe."""

    def __init__(self, root: ViewedFolder, folder: Path) -> None:
        super().__init__(root, folder, (METRICS_FILE,), MAX_LINE)

    @abstractmethod
    def _add_row(self, row: Mapping[str, Any] | None) -> None:
        """Take one row; None stands for a line that could not be read."""

    def _add(self, block: LineBlock) -> None:
        for line in block.lines:
            self._add_row(read_row(line))

    def refresh(self, limit: int = MAX_READ) -> int:
        """Read about `limit` bytes of new rows and return the number of bytes read. Later calls read the rest."""
        return self._read_new_lines(limit)


class MetricColumns(MetricsReader):
    """Metrics by column: one number per row, NaN where a row has none. Short texts, e.g. an evaluation's name, too."""

    def _clear(self) -> None:
        self._rows = self._broken = 0
        self._numbers: dict[str, array[float]] = {}
        self._texts: dict[str, dict[int, str]] = {}
        self._generation = secrets.token_hex(4)
        """Changes whenever rows that were returned are no longer those of the file."""

    def _add_row(self, row: Mapping[str, Any] | None) -> None:
        if row is None or type(row.get("step")) is not int:
            self._broken += 1
            return
        for name, value in row.items():
            column = self._numbers.get(name)
            if column is not None and type(value) is float and len(column) == self._rows:  # nearly all values
                column.append(value)
            elif type(value) is float or type(value) is int:
                self._add_number(metric_name(name), value)
            elif isinstance(value, str | bool):
                self._add_text(metric_name(name), value)
        self._rows += 1

    def _add_number(self, name: str, value: float) -> None:
        column = self._numbers.get(name)
        if column is None:
            if not self._accepts(name):
                return
            column = self._numbers[name] = array("d")
        if len(column) < self._rows:
            column.extend([math.nan] * (self._rows - len(column)))
        elif len(column) > self._rows:  # two names of the row are the same metric
            return
        try:
            column.append(value)
        except OverflowError:  # an integer that is too large for a float
            column.append(math.nan)

    def _add_text(self, name: str, value: str | bool) -> None:
        """Add a number that is stored as text, such as "NaN", or else the text."""
        try:
            self._add_number(name, read_number(value))
        except ValueError:
            if name in self._texts or self._accepts(name):
                text = str(value)[:MAX_TEXT].encode("utf-8", "replace").decode()
                self._texts.setdefault(name, {})[self._rows] = text

    def _accepts(self, name: str) -> bool:
        """Return whether there is space for a new metric of this name."""
        return len(self._numbers) + len(self._texts) < MAX_COLUMNS and len(name) <= MAX_TEXT and is_unicode(name)

    def names(self) -> list[str]:
        return sorted({*self._numbers, *self._texts})

    def since(self, after: int, names: Collection[str] | None, generation: str | None) -> dict[str, Any]:
        """Return the rows from index `after` on, for a page that has the rows before.

        If the page's rows are outdated, return all rows and "reset".
        """
        reset = after > self._rows or (generation is not None and generation != self._generation)
        start = 0 if reset else max(after, 0)
        selected = [name for name in self.names() if names is None or name == "step" or name in names]
        return {
            "rows": self._rows,
            "columns": {name: self._column(name, start) for name in selected},
            "next": self._rows,
            "generation": self._generation,
            "broken": self._broken + self._follower.too_long,
            **({"reset": True} if reset else {}),
        }

    def _column(self, name: str, start: int) -> list[Any]:
        """Return a column with NaN for missing values; the response encodes NaN as null."""
        numbers = self._numbers.get(name, array("d"))
        values: list[Any] = numbers[start:].tolist()
        values += [math.nan] * (self._rows - start - len(values))
        for position, text in self._texts.get(name, {}).items():
            if position >= start:
                values[position - start] = text
        return values


class RunProgress(MetricsReader):
    """Step, success, time and tokens of a run: a few numbers, however long the run is."""

    @property
    def caught_up(self) -> bool:
        return self._follower.caught_up

    def _clear(self) -> None:
        self.step: int | None = None
        self.wall_s: float | None = None
        self.tokens: int | None = None
        self.is_sft = False
        self._broken = 0
        self._evaluation: EvaluationRecord | None = None
        self._rollout_success: float | None = None

    @property
    def broken(self) -> int:
        return self._broken + self._follower.too_long

    def _add_row(self, row: Mapping[str, Any] | None) -> None:
        record = None if row is None else read_record(row)
        if record is None:
            self._broken += 1
            return
        self.step = record.step
        if seconds := training_s(record):
            self.wall_s = (self.wall_s or 0.0) + seconds
        if isinstance(record, SetUpRecord):
            self.is_sft = record.digest is not None
        elif isinstance(record, EvaluationRecord):
            self._evaluation = record
        elif isinstance(record, StepRecord):
            self._add_step(record)

    def _add_step(self, record: StepRecord) -> None:
        for tokens in (record.played("sampled_tokens"), record.training.get("answer_tokens")):
            if number := finite_number(tokens):
                self.tokens = (self.tokens or 0) + int(number)
        self._rollout_success = finite_number(record.rollout.get("success", self._rollout_success))

    def read_tail(self) -> None:
        """Read only the last rows, for step and success. Time and tokens are sums over all rows and stay unknown."""
        self._restart()
        try:
            with self._root.open(self._folder, METRICS_FILE) as file:
                lines = read_last_lines(file, TAIL_BYTES)
        except FileNotServed:
            return
        for line in lines:
            self._add_row(read_row(line))
        self.wall_s = self.tokens = None

    def success(self) -> dict[str, float | None]:
        """Return the last evaluation's success with its interval; before the first one, the last step's success."""
        if self._evaluation is None:
            return {"success": self._rollout_success, "success_low": None, "success_high": None}
        low, high = self._evaluation.interval
        return {"success": self._evaluation.success, "success_low": low, "success_high": high}


def read_alarms(root: ViewedFolder, folder: Path) -> dict[str, Any]:
    """Return a run's alarms; of a very large file, the last ones. A line that is still being written is left out."""
    try:
        with root.open(folder, ALARMS) as file:
            rows = [read_row(line) for line in read_last_lines(file, MAX_ALARM_BYTES)]
    except FileNotServed:
        return {"alarms": [], "broken": 0}
    alarms = [
        {"step": row["step"], "text": row["text"][:MAX_ALARM_TEXT]}
        for row in rows
        if row is not None and isinstance(row.get("step"), int) and isinstance(row.get("text"), str)
    ]
    return {"alarms": alarms, "broken": len(rows) - len(alarms)}
