"""Values of context variables for the length of a block."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Value = TypeVar("Value")


@contextmanager
def set_in_block(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """Set the variable in the block, also for tasks that it starts."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
