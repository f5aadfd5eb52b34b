"""SIGTERM and SIGHUP end a command as Ctrl-C does: training saves a checkpoint and prints how to resume.

Repeats of them are ignored, because a terminal that closes may send two. Ctrl-C after the first one ends the command at
once.
"""

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopSignals:
    """`received` is the signal that ended the command; SIGINT unless another one did."""

    def __init__(self) -> None:
        self.received = signal.SIGINT
        self._stopping = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals in the block; those that the parent process ignores stay ignored, as SIGHUP under nohup.

        A shell's background job starts with SIGINT ignored. It gets its handler all the same, because asyncio cancels
        its main task by that handler, and the other signals are passed on to it.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        if before[signal.SIGINT] is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if before[number] is signal.SIG_DFL:
                signal.signal(number, self._stop)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Call the handler of SIGINT, whichever it is at that moment: Python's or asyncio's.

        Only once: asyncio's raises KeyboardInterrupt at the second call, in the middle of the checkpoint.
        """
        replace_closed_outputs()
        if self._stopping:
            return
        self._stopping, self.received = True, signal.Signals(number)
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            handler(signal.SIGINT, frame)


def replace_closed_outputs() -> None:
    """Point outputs without a reader at /dev/null, so that printing to a closed terminal cannot cost the checkpoint."""
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is None or stream.closed:
            continue
        state = select.poll()
        state.register(stream.fileno(), select.POLLOUT)
        if any(found & (select.POLLHUP | select.POLLERR) for _, found in state.poll(0)):
            empty = os.open(os.devnull, os.O_WRONLY)
            os.dup2(empty, stream.fileno())
            os.close(empty)
