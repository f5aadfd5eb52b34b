"""A server in a thread, and a page of it in a browser, for the tests of the viewer and the studio."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

if TYPE_CHECKING:
    from fastapi import FastAPI
    from playwright.sync_api import Page

PATIENCE_MS = 60_000
"""Timeout for anything to appear, generous because the machine may be busy."""


@contextmanager
def serving_app(make: Callable[[int], "FastAPI"]) -> Iterator[str]:
    """Serve the application for a port from a thread, and yield its address."""
    import uvicorn

    from turnwise.network.ports import listen

    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(make(port), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join()


def expect(what: Any) -> Any:
    """Call Playwright's `expect`, imported here because tests are skipped where Playwright is missing."""
    from playwright.sync_api import expect as wait_until

    wait_until.set_options(timeout=PATIENCE_MS)
    return wait_until(what)


class OpenedPage:
    """A page of the viewer, and the errors that it logged."""

    def __init__(self, page: "Page", address: str) -> None:
        self.page, self.address = page, address
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._listeners: dict[Any, Callable[[Any], Any]] = {
            "pageerror": lambda error: self.problems.append(str(error)),
            "console": lambda message: self.problems.extend([message.text] if message.type == "error" else []),
            "request": lambda request: self.requests.append(request.url),
        }

    def __enter__(self) -> Self:
        self.page.set_default_timeout(PATIENCE_MS)
        for event, listener in self._listeners.items():
            self.page.on(event, listener)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Leave the page empty and idle, but loaded, for the next test."""
        if self.page.url.startswith(self.address):
            self.page.evaluate(
                "localStorage.clear(); delete document.documentElement.dataset.theme; location.hash = '#/none'"
            )
        self.page.mouse.move(0, 0)
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)

    def open(self, view: str, **entries: Any) -> None:
        """Open a view by its address and wait for it."""
        pairs = [
            (name, each) for name, value in entries.items() for each in (value if isinstance(value, list) else [value])
        ]
        query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in pairs)
        self.page.evaluate("document.querySelector('main')?.setAttribute('aria-busy', 'true')")
        self.page.goto(f"{self.address}#/{view}?{query}")
        self.page.wait_for_selector(f".view-{view}")
        self.page.wait_for_selector("main[aria-busy=false]")

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    def entries(self) -> dict[str, str]:
        """Return the parameters in the address, without lists."""
        found = re.findall(r"[?&]([^=&]+)=([^&]*)", self.page.url)
        return dict(found)

    def saved(self, selector: str) -> bytes:
        """Return the file that a click downloads."""
        with self.page.expect_download() as download:
            self.page.locator(selector).click()
        return Path(download.value.path()).read_bytes()
