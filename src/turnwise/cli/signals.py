"""SIGTERM and SIGHUP stop a command as Ctrl-C does: training saves a checkpoint and prints how to resume.

Repeated SIGTERM and SIGHUP are ignored, because a closing terminal may send two. Ctrl-C after the first one stops the
command at once.
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
    """`received` is the signal that stopped the command; SIGINT unless another one arrived."""

    def __init__(self) -> None:
        self.received = signal.SIGINT
        self._stopping = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals in the block. Signals that the parent process ignores stay ignored, like SIGHUP in nohup.

        SIGINT is the exception: a shell starts background jobs with SIGINT ignored, but asyncio cancels its main task
        through the SIGINT handler, which the other signals call. So the handler is installed all the same.
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
        """Call the current SIGINT handler, Python's or asyncio's.

        Only once: at the second call asyncio's handler raises KeyboardInterrupt, which would interrupt the checkpoint.
        """
        replace_closed_outputs()
        if self._stopping:
            return
        self._stopping, self.received = True, signal.Signals(number)
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            handler(signal.SIGINT, frame)


def replace_closed_outputs() -> None:
    """Redirect outputs without a reader to /dev/null: printing to a closed terminal must not fail the checkpoint."""
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is None or stream.closed:
            continue
        poller = select.poll()
        poller.register(stream.fileno(), select.POLLOUT)
        if any(events & (select.POLLHUP | select.POLLERR) for _, events in poller.poll(0)):
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, stream.fileno())
            os.close(devnull)
