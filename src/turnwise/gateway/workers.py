"""Threads in which long requests are read and rendered, so that the event loop answers others meanwhile."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from turnwise.gateway.chat import ChatRequest

THREADS = 2
"""They share the interpreter with the event loop: with more of them it would run more rarely."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Workers:
    """Runs functions on long requests. Those with images have one thread: image processors are not for several."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="gateway")
        self._images = ThreadPoolExecutor(1, thread_name_prefix="gateway-images")

    async def read(
        self, is_long: bool, function: Callable[Arguments, Result], *args: Arguments.args, **options: Arguments.kwargs
    ) -> Result:
        """Call the function, in a thread if `is_long`."""
        return await self._call(self._threads, function, *args, **options) if is_long else function(*args, **options)

    async def work_on(
        self,
        request: ChatRequest,
        function: Callable[Arguments, Result],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        """Call a function that reads the request, in a thread if the request is long or has images."""
        if any(message.images for message in request.messages):
            return await self._call(self._images, function, *args, **options)
        return await self.read(request.is_long, function, *args, **options)

    async def _call(
        self,
        threads: ThreadPoolExecutor,
        function: Callable[Arguments, Result],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        return await asyncio.wrap_future(threads.submit(function, *args, **options))

    def close(self) -> None:
        """Wait for what is running; drop what is waiting."""
        for threads in (self._threads, self._images):
            threads.shutdown(cancel_futures=True)
