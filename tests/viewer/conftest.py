"""A page and a folder of runs for the tests of the page, both created once."""

import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser_fixtures_for_tests import ConnectedBrowser

if TYPE_CHECKING:
    from browser_for_tests import Viewer
    from playwright.sync_api import Page


@pytest.fixture(scope="session")
def served(
    browser_path: str, shared_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, str]]:
    """The folder of runs, which is made once for all workers, and the server's address."""
    from browser_for_tests import make_runs, serving

    made, root = shared_cache / "viewed", tmp_path_factory.mktemp("viewed") / "runs"
    with (shared_cache / "viewed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            make_runs(root)
            shutil.copytree(root, made)
        else:
            shutil.copytree(made, root)
    with serving(root) as address:
        yield root, address


@pytest.fixture(scope="session")
def only_page(served: tuple[Path, str], connected_browser: ConnectedBrowser) -> "Page":
    """The page that all tests use, opened after the runs were written."""
    with connected_browser.in_use() as browser:
        return browser.new_context(accept_downloads=True).new_page()


@pytest.fixture
def page(only_page: "Page", connected_browser: ConnectedBrowser) -> Iterator["Page"]:
    with connected_browser.in_use():
        yield only_page


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
