"""Runs explained in words, computed again only when their files have changed."""

from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from turnwise.concurrency.bounded_cache import BoundedCache, count_values
from turnwise.files.run_folders import METRICS_FILE
from turnwise.record.run_folder import ALARMS_FILE
from turnwise.report.explain import explain
from turnwise.report.run_facts import read_facts
from turnwise.report.sentences import by_title
from turnwise.viewer.runs import SUMMARY, read_summary
from turnwise.viewer.viewed_folder import ViewedFolder

MAX_RUNS = 50
FILES = (METRICS_FILE, ALARMS_FILE, SUMMARY, "trajectories")


class Explanations:
    """Thread-safe. One run is explained at a time, because its files may be large."""

    def __init__(self, root: ViewedFolder) -> None:
        self._root, self._lock = root, Lock()
        self._known = BoundedCache[list[dict[str, Any]]](count_values, MAX_RUNS)

    def explain(self, folder: Path) -> list[dict[str, Any]]:
        """Return [{"title", "sentences"}]."""
        statuses = (self._root.stat(folder, name) for name in FILES)
        key = (str(folder), *(status and (status.st_mtime_ns, status.st_size) for status in statuses))
        with self._lock:
            sections = self._known.get(key)
            if sections is None:
                summary = read_summary(self._root, folder)
                finished = bool(summary) and summary.get("finished") is not False
                facts = read_facts(partial(self._root.open, folder), finished=finished)
                sections = [{"title": title, "sentences": texts} for title, texts in by_title(explain(facts))]
                self._known.put(key, sections)
            return sections
