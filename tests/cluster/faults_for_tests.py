"""Faults of a run's actors: at the start of a phase, a process is killed, stopped, or has no disk or memory left."""

import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from turnwise.cluster.hang_watch import HangWatch
from turnwise.cluster.learners import RemoteLearner
from turnwise.cluster.replica_pool import ReplicaCollector, ReplicaPool
from turnwise.report.progress import Progress
from turnwise.run.clustering import EVALUATION, TRAINING
from work_for_tests import wait_until

PROCESSES = ("engine replica 0", "learner rank 0", "learner rank 1", "environment worker 0")
PHASES: Mapping[str, tuple[type, str]] = {
    "rollout": (ReplicaCollector, "episodes"),
    "scoring": (RemoteLearner, "score"),
    "update": (RemoteLearner, "forward_backward"),
    "publish": (ReplicaPool, "publish"),
    "checkpoint": (RemoteLearner, "save_state"),
    "evaluation": (ReplicaCollector, "episodes"),
    "start": (HangWatch, "add"),
}
"""The method with which a phase begins."""
COLLECTORS = {"rollout": TRAINING, "evaluation": EVALUATION}
MEMORY_BYTES = 4_000_000
"""What a process may still get when it is about to have no memory."""


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def fill_disk(pid: int) -> None:
    """Let every write to a file fail."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))


def fill_memory(pid: int) -> None:
    """Let allocations fail, also those of C code."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))


FAULTS: Mapping[str, Callable[[int], None]] = {
    "SIGKILL": kill,
    "SIGSTOP": stop,
    "full disk": fill_disk,
    "no memory": fill_memory,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One cell of the fault matrix."""

    process: str
    fault: str
    phase: str
    after_step: int = 1
    """Number of steps that have to be complete before."""


class FaultyRun:
    """Causes faults in the run that is trained next, each once."""

    def __init__(self, patch: pytest.MonkeyPatch, *faults: Fault) -> None:
        self._left, self._step = list(faults), 0
        self.caused: dict[Fault, int] = {}
        """Process id of each victim."""
        self.noticed_s: list[float] = []
        """Seconds between the latest fault and each note of the run."""
        self._at = 0.0
        self._watch: HangWatch | None = None
        patch.setattr(HangWatch, "__init__", self._remember(HangWatch.__init__))
        for phase, (owner, name) in PHASES.items():
            patch.setattr(owner, name, self._before(phase, getattr(owner, name)))
        patch.setattr(Progress, "note", self._note(Progress.note))

    def on_step(self, row: Mapping[str, Any]) -> None:
        self._step = row["step"]

    def _remember(self, init: Any) -> Any:
        def remember(watch: HangWatch, *arguments: Any) -> None:
            self._watch = watch
            init(watch, *arguments)

        return remember

    def _before(self, phase: str, call: Any) -> Any:
        def begin(owner: Any, *arguments: Any, **options: Any) -> Any:
            if phase not in COLLECTORS or owner.name == COLLECTORS[phase]:
                for fault in [fault for fault in self._left if fault.phase == phase]:
                    if phase == "start" or self._step >= fault.after_step:
                        self._left.remove(fault)
                        work = threading.Thread(target=self._cause, args=(fault,), daemon=True)
                        work.start()
                        if phase != "start":  # then the process has to be started first
                            work.join()
            return call(owner, *arguments, **options)

        return begin

    def _cause(self, fault: Fault) -> None:
        assert self._watch is not None
        watch, pids = self._watch, list[int]()

        def find() -> bool:
            beating = [each for each in watch._watched.values() if each.name == fault.process and each.last]
            pids.extend(each.last.pid for each in beating if each.last is not None)
            return bool(pids)

        assert wait_until(find, 120), fault
        self._apply(fault, pids[0])

    def _apply(self, fault: Fault, pid: int) -> None:
        self._at, self.caused[fault] = time.monotonic(), pid
        FAULTS[fault.fault](pid)

    def _note(self, note: Any) -> Any:
        def write(progress: Progress, text: str) -> None:
            if self.caused:
                self.noticed_s.append(round(time.monotonic() - self._at, 1))
            note(progress, text)

        return write
