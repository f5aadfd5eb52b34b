"""The thread of the learner: that of the event loop, or another one beside it."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeVar

import torch

_T = TypeVar("_T")


class ThisThread:
    """Runs the learner's part of a step in the event loop: nothing else runs meanwhile."""

    cancelled = False

    async def run(self, call: Callable[[], _T]) -> _T:
        return call()


class LearnerThread:
    """Runs the learner's part of a step in a thread, on a CUDA stream of its own, so that episodes continue."""

    def __init__(self) -> None:
        self.cancelled = False
        """True if the caller was cancelled during the step. The step still completes: half of one cannot be saved."""
        self._stream = torch.cuda.Stream() if torch.cuda.is_available() else None

    async def run(self, call: Callable[[], _T]) -> _T:
        running = asyncio.ensure_future(asyncio.to_thread(self._call, call))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self.cancelled = True
            return await running

    def _call(self, call: Callable[[], _T]) -> _T:
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            result = call()
        if self._stream is not None:
            self._stream.synchronize()
        return result
