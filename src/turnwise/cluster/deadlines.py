"""Deadlines of calls, from the times of earlier calls of the same name."""

from collections import Counter, deque

FIRST_S = 900.0
"""Deadline of a call without earlier ones, such as one that compiles."""
FLOOR_S = 120.0
"""Least deadline of a later call."""
FACTOR = 10.0
"""A later call may take this many times as long as the longest of the last ones."""
LAST = 16
"""Number of earlier calls that count."""
MAX_EXPIRED = 3
"""An expired deadline may have been too short, so the next one of its name is doubled, this often at most."""


class Deadlines:
    """Deadlines by the names of calls."""

    def __init__(self) -> None:
        self._earlier: dict[str, deque[float]] = {}
        self._expired = Counter[str]()

    def seconds(self, name: str) -> float:
        """Return how long the next call may take."""
        earlier = self._earlier.get(name)
        limit_s = FIRST_S if earlier is None else max(FLOOR_S, FACTOR * max(earlier))
        return float(limit_s * 2 ** min(self._expired[name], MAX_EXPIRED))

    def note(self, name: str, seconds: float) -> None:
        """Note a call that has returned."""
        self._earlier.setdefault(name, deque(maxlen=LAST)).append(seconds)

    def expire(self, name: str) -> str:
        """Note a call that has not returned in time; return the words for it."""
        limit_s, earlier = self.seconds(name), self._earlier.get(name)
        self._expired[name] += 1
        longest = "" if earlier is None else f", and earlier ones took {max(earlier):.1f} s at most"
        return f"{name} did not end within {limit_s:.0f} s{longest}"

    def forget(self) -> None:
        """Forget earlier calls: new processes compile again."""
        self._earlier.clear()
