"""The most recently used values, up to a number of them or of bytes."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


def count_values(value: object) -> int:
    """Size of a value in a cache that is limited by their number."""
    return 1


class BoundedCache(Generic[Value]):
    """The most recently used values by key. Threads may share it: asynchronous training reads images in two.

    `size`: bytes of a value, or `count_values`. `max_size`: size of all values, which one large value may exceed alone;
    None for no limit.
    """

    def __init__(self, size: Callable[[Value], int], max_size: int | None) -> None:
        self.max_size = max_size
        self._size = size
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._total = 0
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it empty: another process has its own values."""
        return BoundedCache, (self._size, self.max_size)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def get(self, key: Hashable) -> Value | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: Hashable, value: Value) -> None:
        """Keep the value, unless there is one with this key; drop those that were not used for the longest time."""
        with self._lock:
            if key not in self._values:
                self._values[key] = value
                self._total += self._size(value)
            self._values.move_to_end(key)
            while self.max_size is not None and self._total > self.max_size and len(self._values) > 1:
                self._total -= self._size(self._values.popitem(last=False)[1])

    def drop(self, key: Hashable) -> None:
        with self._lock:
            if key in self._values:
                self._total -= self._size(self._values.pop(key))

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self._total = 0

    def items(self) -> list[tuple[Any, Value]]:
        with self._lock:
            return list(self._values.items())
