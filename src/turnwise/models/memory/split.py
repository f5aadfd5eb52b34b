"""Parts of limited size, for passes and buffers."""

from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def split_by_size(items: Iterable[Item], size: Callable[[Item], int], limit: int) -> list[list[Item]]:
    """Split the items, in order, into parts of at most `limit`. A larger item is a part of its own."""
    parts: list[list[Item]] = []
    total = 0
    for item in items:
        if not parts or total + size(item) > limit:
            parts.append([])
            total = 0
        parts[-1].append(item)
        total += size(item)
    return parts
