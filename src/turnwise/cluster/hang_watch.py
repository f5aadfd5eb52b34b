"""Watch of a run's actors: one that gives no heartbeat is killed, so that every wait for it ends as after a death."""

import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from turnwise.cluster.heartbeat import Heartbeat, inspect_process

SILENCE_S = 30.0
"""Seconds without a heartbeat after which an actor counts as hung. Doubled for its successor: it may just be slow."""
STARTING = 4
"""Factor on that while an actor loads libraries and weights, which may hold Python's lock."""
MAX_SILENCE_S = 600.0
BEATS = 10
"""Number of heartbeats that are missing then."""
INSPECT_S = 15.0
"""Longest time to look at a process on another node."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Watched:
    name: str
    actor: Any
    starting: bool = True
    asked: Any = None
    """Ray's reference to a heartbeat that has not come yet."""
    last: Heartbeat | None = None
    silent_s: float = 0.0
    cause: str | None = None
    """Why it was killed."""

    @property
    def where(self) -> str:
        return self.name if self.last is None else f"{self.name} ({self.last.host}, process {self.last.pid})"


class HangWatch:
    """Asks actors for heartbeats, in a thread of its own.

    Silence counts from the first heartbeat on, and only while this process runs itself.
    """

    def __init__(self, folder: Path | None) -> None:
        """`folder`: gets the stacks of hung processes."""
        self._folder, self._period_s = folder, SILENCE_S / BEATS
        self._watched: dict[Any, _Watched] = {}
        self._hangs = Counter[str]()
        """Number of hung actors by name."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hang-watch", daemon=True)
        self._thread.start()

    def add(self, actor: Any, name: str) -> None:
        """Watch a new actor."""
        self._watched[actor] = _Watched(name=name, actor=actor)

    def note_started(self, actor: Any) -> None:
        """Note that an actor has loaded what it needs."""
        if (watched := self._watched.get(actor)) is not None:  # else it has died since
            watched.starting = False

    def forget(self, actor: Any) -> None:
        """Do not watch an actor any more that is killed."""
        self._watched.pop(actor, None)

    def cause(self, actor: Any) -> str | None:
        """Return why an actor was killed, or None if it was not killed here."""
        watched = self._watched.get(actor)
        return None if watched is None else watched.cause

    def explain(self, actors: Iterable[Any]) -> str | None:
        """Return which of these actors was killed, and why, or None if none was killed here."""
        killed = [watched for actor in actors if (watched := self._watched.get(actor)) is not None and watched.cause]
        return f"{killed[0].where}: {killed[0].cause}" if killed else None

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        before = time.monotonic()
        while not self._closing.wait(self._period_s):
            elapsed_s = min(time.monotonic() - before, 2 * self._period_s)  # more: this process was stopped itself
            before = time.monotonic()
            for watched in list(self._watched.values()):
                if watched.cause is None and self._is_silent(watched, elapsed_s):
                    self._hangs[watched.name] += 1
                    watched.cause = f"no heartbeat for {watched.silent_s:.0f} s"
                    threading.Thread(target=self.end, args=([watched.actor], watched.cause), daemon=True).start()

    def _is_silent(self, watched: _Watched, elapsed_s: float) -> bool:
        """Receive the actor's heartbeat, if it has come, and ask for the next one."""
        if watched.asked is None:
            watched.asked = watched.actor.heartbeat.remote()
            return False
        if not ray.wait([watched.asked], timeout=0)[0]:
            watched.silent_s += 0.0 if watched.last is None else elapsed_s
            return watched.silent_s > self._limit_s(watched)
        try:
            watched.last, watched.silent_s = ray.get(watched.asked), 0.0
            watched.asked = watched.actor.heartbeat.remote()
        except RayError:  # it has died, which its callers see too
            self.forget(watched.actor)
        return False

    def _limit_s(self, watched: _Watched) -> float:
        factor = 2 ** self._hangs[watched.name] * (STARTING if watched.starting else 1)
        return min(SILENCE_S * factor, max(SILENCE_S, MAX_SILENCE_S))

    def end(self, actors: Iterable[Any], cause: str) -> None:
        """Kill hung actors. Their causes name what they did last and what their processes wait for."""
        ended = [watched for actor in actors if (watched := self._watched.get(actor)) is not None]
        for watched in ended:
            state, stacks = _inspect(watched.last)
            doing = "" if watched.last is None else watched.last.activity
            saved = self._save(watched, stacks) if stacks else ""
            watched.cause = ", ".join(part for part in (f"{cause} {doing}".rstrip(), state, saved) if part)
        for watched in ended:
            ray.kill(watched.actor)

    def _save(self, watched: _Watched, stacks: str) -> str:
        """Write the stacks of a hung process into the run's folder; return the words that name the file."""
        if self._folder is None or watched.last is None:
            return ""
        file = self._folder / f"{watched.name.replace(' ', '-')}-{watched.last.pid}.txt"
        try:
            self._folder.mkdir(exist_ok=True)
            file.write_text(f"{watched.name} on {watched.last.host}, {watched.last.activity}\n\n{stacks}")
        except OSError as error:
            return f"its stacks cannot be saved ({error.strerror})"
        return f"its stacks are in {file}"


def _inspect(last: Heartbeat | None) -> tuple[str, str]:
    """Return what `inspect_process` does, on the process's node."""
    if last is None:
        return "", ""
    if last.node == ray.get_runtime_context().get_node_id():
        return inspect_process(last.pid, last.stacks)
    strategy = NodeAffinitySchedulingStrategy(last.node, soft=False)
    task = ray.remote(inspect_process).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)
    try:
        return ray.get(task.remote(last.pid, last.stacks), timeout=INSPECT_S)
    except (GetTimeoutError, RayError):
        return "its node does not answer", ""
