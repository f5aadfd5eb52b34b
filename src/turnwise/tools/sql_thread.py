"""Work in a thread that nobody waits for at the end."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Given = TypeVar("Given")


def in_thread(work: Callable[[], Given]) -> Future[Given]:
    """Starts at once, however many others there are; one that hangs keeps its thread and nothing else.

    A coroutine awaits it with `asyncio.wrap_future`.
    """
    future: Future[Given] = Future()
    future.set_running_or_notify_cancel()  # from now on nobody can cancel it, so that its end can always be told

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name="sql", daemon=True).start()
    return future
