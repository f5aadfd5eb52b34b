"""A browser and a folder of runs for the tests of the page, both created once."""

import importlib.util
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from work_for_tests import wait_until

if TYPE_CHECKING:
    from browser_for_tests import Viewer
    from playwright.sync_api import Page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


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
def served(browser_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The folder of runs and the server's address."""
    from browser_for_tests import make_runs, serving

    root = tmp_path_factory.mktemp("viewed") / "runs"
    make_runs(root)
    with serving(root) as address:
        yield root, address


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


@pytest.fixture(scope="module")
def page(served: tuple[Path, str], browser_address: str) -> Iterator["Page"]:
    """A page per test module, opened after the runs were written.

    Its driver runs an event loop in this thread, so that nothing else can call `asyncio.run` meanwhile.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.connect_over_cdp(browser_address)
        context = browser.new_context(accept_downloads=True)
        yield context.new_page()
        context.close()


@pytest.fixture
def viewer(page: "Page", served: tuple[Path, str]) -> Iterator["Viewer"]:
    """A fresh page, 1280 pixels wide. It must log no error and fetch nothing from other servers."""
    from browser_for_tests import Viewer

    root, address = served
    page.set_viewport_size({"width": 1280, "height": 860})
    page.emulate_media(color_scheme="light")
    with Viewer(page, root, address) as opened:
        yield opened
    assert not opened.problems
    assert all(url.startswith((address, "data:", "blob:")) for url in opened.requests)
