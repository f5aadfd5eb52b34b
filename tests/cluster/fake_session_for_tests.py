"""The cluster of a run whose actors are objects of this process."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def fake_session(*, kill: Callable[[Any], None] = lambda actor: None, **counts: int) -> Any:
    """Return a `ClusterSession` with as many slots of each type. None of its actors hangs."""
    slots = {name: [None] * count for name, count in counts.items()}
    hangs = SimpleNamespace(cause=lambda actor: None, explain=lambda actors: None, note_started=lambda actor: None)
    return SimpleNamespace(placement=SimpleNamespace(**slots), kill=kill, hangs=hangs)
