"""Cache of the runs that were viewed last."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Semaphore
from typing import Any

from turnwise.concurrency.bounded_cache import BoundedCache, count_values
from turnwise.record.images import IMAGES_FOLDER, image_file_name
from turnwise.viewer.index import EvaluationIndex, RunIndex, TokenTexts
from turnwise.viewer.metrics import MetricColumns
from turnwise.viewer.settings import is_evaluation, model_names
from turnwise.viewer.spans import SpanReader
from turnwise.viewer.table import TrajectoryTable
from turnwise.viewer.trajectories import LineReader, decode_line, encode_trajectory, find_image_hashes, token_ids
from turnwise.viewer.viewed_folder import FileNotServed, ViewedFolder

MAX_RUNS = 6
"""Runs whose indexes and metrics are cached: about 15 MB each with 100,000 trajectories."""
MAX_CONCURRENT_TRAJECTORIES = 2
"""Trajectories that are read at the same time, because each may be large."""


class RunReader:
    """Follows the files of one run or evaluation; each line is read once. Thread-safe."""

    def __init__(self, root: ViewedFolder, folder: Path, models: tuple[str, ...] | None) -> None:
        """`models`: the models of an evaluation; None for a run."""
        self.folder, self.models, self._root, self._lock = folder, models, root, Lock()
        self._metrics = MetricColumns(root, folder)
        self._index = RunIndex(root, folder) if models is None else EvaluationIndex(root, folder, models)
        self._spans = SpanReader(root, folder)
        self._tokens = {model: TokenTexts(root, folder, model) for model in models or (None,)}

    def table(self) -> TrajectoryTable:
        with self._lock:
            return self._index.refresh()

    def metrics(self, after: int, names: Iterable[str] | None, generation: str | None) -> dict[str, Any]:
        with self._lock:
            self._metrics.refresh()
            return self._metrics.since(after, None if names is None else set(names), generation)

    def metric_names(self) -> list[str]:
        with self._lock:
            self._metrics.refresh()
            return self._metrics.names()

    def spans(self, last: int | None, count: int) -> dict[str, Any]:
        """Return who did what in `count` steps up to the step `last`; None: up to the last one."""
        with self._lock:
            return self._spans.read(last, count)

    @contextmanager
    def line_reader(self) -> Iterator[Callable[[dict[str, Any]], bytes]]:
        """Yield a function that returns the stored line of a row of the table."""
        with LineReader(self._root, self.folder) as reader:
            yield lambda row: reader.read(self._index.file_name(row), row)

    def row(self, number: int) -> dict[str, Any]:
        """Return a stored trajectory."""
        return self._read(self._find(number))[1]

    def trajectory(self, number: int) -> bytes:
        """Return the encoded response for one trajectory."""
        row = self._find(number)
        line, contents, repaired = self._read(row)
        with self._lock:
            tokens = self._tokens[row.get("model")]
            tokens.refresh()
            texts = tokens.look_up(token_ids(contents))
        missing = [name for name in find_image_hashes(contents) if not self._has_image(name)]
        return encode_trajectory(line, contents, repaired, texts, missing)

    def _find(self, number: int) -> dict[str, Any]:
        """Return the row of the table of a trajectory."""
        table = self.table()
        position = table.find(number)
        if position is None:
            raise FileNotServed(f"No trajectory {number} in this run: reload the list.")
        return table.row(position)

    def _read(self, row: dict[str, Any]) -> tuple[bytes, dict[str, Any], bool]:
        with self.line_reader() as read_line:
            return decode_line(read_line(row), self._index.file_name(row))

    def _has_image(self, image_hash: str) -> bool:
        return self._root.stat(self.folder, f"{IMAGES_FOLDER}/{image_file_name(image_hash)}") is not None


class RunStore:
    """Readers of the runs that were viewed last, by run id."""

    def __init__(self, root: ViewedFolder) -> None:
        self.root = root
        self._readers = BoundedCache[RunReader](count_values, MAX_RUNS)
        self._reading = Semaphore(MAX_CONCURRENT_TRAJECTORIES)

    def open(self, run_id: str) -> RunReader:
        """Return the reader of a run. Raises FileNotServed if the run does not exist."""
        folder = self.root.find_run(run_id)
        models = model_names(self.root, folder) if is_evaluation(folder) else None
        key = (run_id, folder, models)  # a folder may be replaced under the same id
        if key not in self._readers:
            self._readers.put(key, RunReader(self.root, folder, models))
        return self._readers.get(key) or RunReader(self.root, folder, models)

    def trajectory(self, run_id: str, number: int) -> bytes:
        with self._reading:
            return self.open(run_id).trajectory(number)

    def row(self, run_id: str, number: int) -> dict[str, Any]:
        with self._reading:
            return self.open(run_id).row(number)
