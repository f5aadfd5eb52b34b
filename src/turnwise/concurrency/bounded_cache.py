"""Values in memory up to a number of bytes."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class BoundedCache(Generic[Value]):
    """The most recently used values by key. Threads may share it: asynchronous training reads images in two.

    `size`: bytes of a value. `max_bytes`: bytes of all values, which one large value may exceed alone; None for no
    limit.
    """

    def __init__(self, size: Callable[[Value], int], max_bytes: int | None) -> None:
        self.max_bytes = max_bytes
        self._size = size
        self._values: OrderedDict[str, Value] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it empty: another process has its own values."""
        return BoundedCache, (self._size, self.max_bytes)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str) -> Value | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: str, value: Value) -> None:
        """Keep the value, unless there is one with this key; drop those that were not used for the longest time."""
        with self._lock:
            if key not in self._values:
                self._values[key] = value
                self._bytes += self._size(value)
            self._values.move_to_end(key)
            while self.max_bytes is not None and self._bytes > self.max_bytes and len(self._values) > 1:
                self._bytes -= self._size(self._values.popitem(last=False)[1])

    def drop(self, key: str) -> None:
        with self._lock:
            if key in self._values:
                self._bytes -= self._size(self._values.pop(key))

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self._bytes = 0

    def items(self) -> list[tuple[str, Value]]:
        with self._lock:
            return list(self._values.items())
