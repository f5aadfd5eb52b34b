"""Spans of activities on lanes, such as engine replicas, environment workers and learner ranks."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock

MIN_S = 0.001
"""Shorter spans are left out, and shorter gaps between spans of the same activity are closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    lane: str
    activity: str
    start: float
    """Seconds since 1970."""
    end: float


class SpanLog:
    """Collects spans until `take`. Thread-safe: rollouts and the learner run in different threads."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now, self._lock = now, Lock()
        self._spans: list[Span] = []
        self._current: dict[str, tuple[str, float]] = {}
        """Activity of each busy lane, and when it began."""

    def add(self, lane: str, activity: str, seconds: float) -> None:
        """Add an activity that ends now."""
        with self._lock:
            end = self._now()
            self._spans.append(Span(lane=lane, activity=activity, start=end - seconds, end=end))

    def switch(self, lane: str, activity: str | None) -> None:
        """End the lane's current activity and begin another one; None: the lane is idle from now on."""
        with self._lock:
            current, now = self._current.get(lane), self._now()
            if current is not None and current[0] == activity:
                return
            self._end(lane, now)
            if activity is not None:
                self._current[lane] = activity, now

    def take(self) -> list[Span]:
        """Return the spans since the last call, by lane and time. Current activities are cut, and continue after it."""
        with self._lock:
            now = self._now()
            for lane, (activity, _) in list(self._current.items()):
                self._end(lane, now)
                self._current[lane] = activity, now
            spans, self._spans = self._spans, []
        return _join(sorted(spans, key=lambda span: (span.lane, span.start)))

    def _end(self, lane: str, now: float) -> None:
        if lane in self._current:
            activity, start = self._current.pop(lane)
            self._spans.append(Span(lane=lane, activity=activity, start=start, end=now))


def _join(spans: list[Span]) -> list[Span]:
    joined: list[Span] = []
    for span in spans:
        last = joined[-1] if joined else None
        is_same = last is not None and (last.lane, last.activity) == (span.lane, span.activity)
        if last is not None and is_same and span.start - last.end < MIN_S:
            joined[-1] = replace(last, end=max(last.end, span.end))
        else:
            joined.append(span)
    return [span for span in joined if span.end - span.start >= MIN_S]
