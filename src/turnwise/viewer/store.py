"""What is kept of the runs that were looked at last."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Semaphore
from typing import Any

from turnwise.viewer.columns import Table
from turnwise.viewer.index import EvaluationIndex, RunIndex
from turnwise.viewer.metrics import Metrics
from turnwise.viewer.root import NotThere, Root
from turnwise.viewer.settings import is_evaluation, model_names
from turnwise.viewer.tokens import TokenTexts
from turnwise.viewer.trajectory import LineReader, readable, token_ids, trajectory_answer

MAX_RUNS = 6
"""Runs of which indexes and metrics are kept: about 15 MB each where there are 100,000 trajectories."""
AT_ONCE = 2
"""Trajectories that are opened at the same time: one may be large."""


ReadLine = Callable[[dict[str, Any]], bytes]


class RunFiles:
    """A run's files, each read once and then only what is new. Threads take turns."""

    def __init__(self, root: Root, folder: Path, models: tuple[str, ...] | None) -> None:
        """`models`: those of an evaluation; None: it is a run."""
        self.folder, self.models, self._root, self._lock = folder, models, root, Lock()
        self._metrics = Metrics(root, folder)
        self._index = RunIndex(root, folder) if models is None else EvaluationIndex(root, folder, models)
        self._tokens = {model: TokenTexts(root, folder, model) for model in models or (None,)}

    def table(self) -> Table:
        with self._lock:
            return self._index.refresh()

    def metrics(self, after: int, keys: Iterable[str] | None, generation: str | None) -> dict[str, Any]:
        with self._lock:
            self._metrics.refresh()
            return self._metrics.since(after, None if keys is None else set(keys), generation)

    def keys(self) -> list[str]:
        with self._lock:
            self._metrics.refresh()
            return self._metrics.keys()

    @contextmanager
    def reading(self) -> Iterator[ReadLine]:
        """What gives the stored line of a row of the table."""
        with LineReader(self._root, self.folder) as reader:
            yield lambda row: reader.read(self._index.place(row), row)

    def trajectory(self, number: int) -> bytes:
        """The answer that shows one trajectory."""
        table = self.table()
        position = table.find(number)
        if position is None:
            raise NotThere(f"there is no trajectory {number} in this run: reload the list")
        row = table.row(position)
        with self.reading() as read:
            line, parsed, mended = readable(read(row), self._index.place(row))
        with self._lock:
            tokens = self._tokens[row.get("model")]
            tokens.refresh()
            texts = tokens.texts(token_ids(parsed))
        return trajectory_answer(line, parsed, mended, texts)


class Store:
    """The runs looked at last, by their id."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._kept: OrderedDict[str, RunFiles] = OrderedDict()
        self._lock = Lock()
        self._opening = Semaphore(AT_ONCE)

    def files(self, run_id: str) -> RunFiles:
        """Raises NotThere for a run that is not, or no more, in the folder."""
        folder = self.root.run(run_id)
        models = model_names(self.root, folder) if is_evaluation(folder) else None
        with self._lock:
            found = self._kept.get(run_id)
            if found is None or (found.folder, found.models) != (folder, models):
                found = self._kept[run_id] = RunFiles(self.root, folder, models)
            self._kept.move_to_end(run_id)
            while len(self._kept) > MAX_RUNS:
                self._kept.popitem(last=False)
        return found

    def trajectory(self, run_id: str, number: int) -> bytes:
        with self._opening:
            return self.files(run_id).trajectory(number)
