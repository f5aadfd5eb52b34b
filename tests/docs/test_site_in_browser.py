"""The documentation site in Chromium: readable, narrow enough for a phone, used by keyboard and without a network."""

import importlib
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from accessibility_for_tests import find_accessibility_problems
from browser_fixtures_for_tests import ConnectedBrowser
from opened_page_for_tests import PATIENCE_MS, expect
from pages_for_tests import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Page

LOOKS = [(1280, "light"), (1280, "dark"), (820, "light"), (390, "dark")]
PAGES = ("index", "gallery", "tutorials/1-train-and-look", "algorithms/losses", "configuration", "migration/trl")
MAX_PAGE_BYTES = 1_500_000
"""Bytes of a page with its pictures, styles and scripts."""
FOCUSED = "document.activeElement.textContent.trim() + ' ' + (document.activeElement.getAttribute('aria-label') ?? '')"


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, browser_path: str) -> Iterator[str]:
    """Address of the site of this checkout."""
    root = tmp_path_factory.mktemp("checkout")
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and path.name not in ("build", "docs", "mkdocs.yml"):
            (root / path.name).symlink_to(path)
    shutil.copy(ROOT / "mkdocs.yml", root)
    shutil.copytree(ROOT / "docs", root / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        importlib.import_module("build_site").build_site(root)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(root / "build/site")))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()


@pytest.fixture
def page(connected_browser: ConnectedBrowser, address: str) -> "Iterator[Page]":
    with connected_browser.in_use() as browser:
        context = browser.new_context()
        opened = context.new_page()
        opened.set_default_timeout(PATIENCE_MS)
        opened.set_default_navigation_timeout(PATIENCE_MS)
        yield opened
        context.close()


@pytest.mark.parametrize("name", PAGES)
def test_page_of_the_site_is_accessible(page: "Page", address: str, name: str) -> None:
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.goto(f"{address}{name}.html")
        expect(page.locator("h1")).to_be_visible()
        assert find_accessibility_problems(page) == [], f"{width} pixels, {scheme}"


@pytest.mark.parametrize("name", PAGES)
def test_page_of_the_site_is_small_and_needs_no_network(page: "Page", address: str, name: str) -> None:
    sizes: dict[str, int] = {}
    page.on("response", lambda response: sizes.update({response.url: len(response.body())}))
    page.goto(f"{address}{name}.html", wait_until="networkidle")
    assert {url for url in sizes if not url.startswith(address)} == set()
    assert 0 < sum(sizes.values()) < MAX_PAGE_BYTES, sizes


def test_site_is_searched_by_keyboard(page: "Page", address: str) -> None:
    page.goto(f"{address}index.html", wait_until="networkidle")
    page.keyboard.press("Control+k")
    page.keyboard.type("max_staleness")
    expect(page.get_by_role("option", name="Worker lanes")).to_be_visible()


def test_tab_key_begins_with_the_content_and_reaches_the_navigation(page: "Page", address: str) -> None:
    page.goto(f"{address}tutorials/1-train-and-look.html", wait_until="networkidle")
    reached = []
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.append(" ".join(page.evaluate(FOCUSED).split()))
    assert reached[0] == "Skip to content"
    assert {"Tutorials", "2. Your own environment"} <= set(reached)
