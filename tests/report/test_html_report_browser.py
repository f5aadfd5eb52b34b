"""The report in a real browser: hostile text is not executed, nothing is fetched, nothing overflows the page."""

import json
from pathlib import Path
from typing import Any

import pytest

from browser_fixtures_for_tests import ConnectedBrowser
from turnwise.report.html_report import write_report

HOSTILE = "<script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\">" + "wide" * 400
PICTURE = {"rows": [["wall", HOSTILE[:60]]], "caption": HOSTILE, "info": {}}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "trajectories").mkdir()
    (folder / "config.toml").write_text(f"[env]\nkind = {json.dumps(HOSTILE)}\n")
    steps = [{"step": step, "rollout/success": 0.1 * step, "train/entropy": 1 / step} for step in range(1, 10)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in steps))
    (folder / "alarms.jsonl").write_text(json.dumps({"step": 3, "text": HOSTILE}) + "\n")
    turn = {"context": HOSTILE, "message": {"role": "assistant", "content": HOSTILE}, "picture": PICTURE}
    row = {"task": {"env": HOSTILE, "seed": 1}, "status": "failed", "reward": 0, "start": PICTURE, "turns": [turn] * 3}
    line = json.dumps(row)
    (folder / "trajectories/step_000009.jsonl").write_text(line + "\n")
    entry = {"step": 9, "status": "failed", "reward": 0, "offset": 0, "length": len(line)}
    (folder / "trajectories/index.jsonl").write_text(json.dumps(entry) + "\n")
    return write_report(folder)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_report_in_a_browser_shows_hostile_text_as_text(
    connected_browser: ConnectedBrowser, report: Path, width: int, scheme: Any
) -> None:
    with connected_browser.in_use() as browser:
        check_report(browser, report, width, scheme)


def check_report(browser: Any, report: Path, width: int, scheme: Any) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    page.goto(report.as_uri())
    for summary in page.locator("summary").all():
        summary.click()
    assert page.title() == report.parent.name  # no script changed it
    assert fetched == [report.as_uri()]
    assert page.locator("pre.message").count() == 3
    assert page.locator("pre.message").first.inner_text().startswith("<script>document.title")
    assert page.evaluate("innerWidth") == width
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 28)"
    assert dark == (scheme == "dark")
    context.close()
