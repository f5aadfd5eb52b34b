"""A browser that is started once per worker, for the tests of pages. conftest.py imports the fixtures."""

import asyncio
import importlib.util
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import pytest

from work_for_tests import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PATIENCE_MS = 600_000
"""Timeout for the browser to be ready: on a busy machine that takes more than half a minute."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class ConnectedBrowser:
    """A browser with Playwright's driver.

    The driver has an event loop, which stays this thread's running loop between calls, so that no test could call
    `asyncio.run`: it is that only while the browser is in use.
    """

    def __init__(self, browser: "Browser") -> None:
        self.browser, self._loop = browser, asyncio.get_running_loop()
        self.pause()

    @contextmanager
    def in_use(self) -> Iterator["Browser"]:
        self.resume()
        try:
            yield self.browser
        finally:
            self.pause()

    def resume(self) -> None:
        asyncio._set_running_loop(self._loop)

    def pause(self) -> None:
        asyncio._set_running_loop(None)


@pytest.fixture(scope="session")
def browser_path(optional_part: Callable[..., NoReturn]) -> str:
    """Path of the browser. Without a browser or Playwright the test is skipped."""
    if missing := [name for name in ("playwright", "fastapi", "uvicorn") if importlib.util.find_spec(name) is None]:
        optional_part(f"the page's tests need {', '.join(missing)}: pip install playwright 'turnwise[view]'")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("these tests need a browser: apt-get install chromium")
    return found


@pytest.fixture(scope="session")
def browser_address(browser_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a browser that is started once, which takes seconds."""
    profile = tmp_path_factory.mktemp("profile")
    flags = ["--headless", "--no-sandbox", "--no-first-run", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
    browser = subprocess.Popen([browser_path, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = profile / "DevToolsActivePort"
        assert wait_until(lambda: port.exists() and port.read_text().count("\n")), "the browser does not start"
        yield f"http://127.0.0.1:{port.read_text().splitlines()[0]}"
    finally:
        browser.kill()
        browser.wait()


@pytest.fixture(scope="session")
def connected_browser(browser_address: str) -> Iterator[ConnectedBrowser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        connected = ConnectedBrowser(playwright.chromium.connect_over_cdp(browser_address, timeout=PATIENCE_MS))
        yield connected
        connected.resume()  # until the driver has ended
        connected.browser.close()
