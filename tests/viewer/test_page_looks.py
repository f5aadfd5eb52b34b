"""Layout of every view on wide and narrow screens. TURNWISE_SCREENSHOTS=DIR saves screenshots there."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser_for_tests import HOSTILE, ONE, OTHER, STEPS, TWO, Viewer, serving

from accessibility_for_tests import find_accessibility_problems

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOCUSED = """(() => {
    const at = document.activeElement;
    return [at.getAttribute("aria-label") ?? at.textContent.trim(), getComputedStyle(at).outlineStyle];
})()"""
SHOTS, VIEWED = os.environ.get("TURNWISE_SCREENSHOTS"), os.environ.get("TURNWISE_VIEWED")
VIEWS: dict[str, dict[str, Any]] = {
    "runs": {"sel": [ONE, OTHER], "filter": "lake"},
    "run": {"run": ONE},
    "curves": {"run": [ONE, TWO, OTHER]},
    "trajectories": {"run": ONE},
    "trajectory": {"run": ONE, "number": 3},
    "tokens": {"run": ONE, "number": 3},
    "group": {"run": ONE, "step": STEPS, "group": 0},
    "compare": {"one": ONE, "other": OTHER},
    "before_after": {"run": OTHER},
}


LOOKS = [(1280, "light"), (390, "light"), *([(1280, "dark")] if SHOTS else [])]
"""Widths and colour schemes. Colours move nothing, so dark is for screenshots."""


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_views_do_not_scroll_sideways(viewer: Viewer, width: int, scheme: Any) -> None:
    viewer.page.set_viewport_size({"width": width, "height": 860})
    viewer.page.emulate_media(color_scheme=scheme)
    for view, entries in VIEWS.items():
        viewer.open(view, **entries)
        assert viewer.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, view
        if SHOTS:
            Path(SHOTS).mkdir(parents=True, exist_ok=True)
            viewer.page.wait_for_timeout(300)  # curves are drawn in the next frames
            viewer.page.screenshot(path=Path(SHOTS) / f"{view}-{width}-{scheme}.png")
    viewer.open("trajectory", run=HOSTILE, number=0)
    assert viewer.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_views_are_accessible(viewer: Viewer, scheme: Any) -> None:
    viewer.page.emulate_media(color_scheme=scheme)
    problems = {}
    for view, entries in VIEWS.items():
        viewer.open(view, **entries)
        if found := find_accessibility_problems(viewer.page):
            problems[view] = found
    assert problems == {}


LINE_ENDS = """keys => keys.flatMap((key) => {
    const characters = [...document.createTreeWalker(key, NodeFilter.SHOW_TEXT).root.textContent];
    const walker = document.createTreeWalker(key, NodeFilter.SHOW_TEXT), tops = [];
    for (let node = walker.nextNode(); node; node = walker.nextNode())
        for (let at = 0; at < node.length; at++) {
            const range = document.createRange();
            range.setStart(node, at);
            range.setEnd(node, at + 1);
            tops.push(Math.round(range.getBoundingClientRect().top));
        }
    return characters.filter((_, at) => tops[at + 1] > tops[at]);
})"""
"""JavaScript that returns the last character of each line of a key but the last line."""


def test_list_of_runs_fits_a_tablet(viewer: Viewer) -> None:
    viewer.page.set_viewport_size({"width": 820, "height": 860})
    viewer.open("runs")
    assert viewer.page.locator(".runs").evaluate("each => each.getBoundingClientRect().right - innerWidth") <= 0
    assert not viewer.page.locator(".col-algorithm").first.is_visible()
    viewer.page.set_viewport_size({"width": 1280, "height": 860})
    assert viewer.page.locator(".col-algorithm").first.is_visible()


def test_settings_on_a_phone_are_broken_between_words(viewer: Viewer) -> None:
    viewer.page.set_viewport_size({"width": 360, "height": 860})
    viewer.open("run", run=ONE)
    viewer.page.locator(".view-run details").evaluate_all("all => all.forEach((each) => { each.open = true; })")
    ends = viewer.page.locator(".differences th[scope=row] code").evaluate_all(LINE_ENDS)
    assert set(ends) in ({".", "_"}, {"."}, {"_"})


def test_tab_key_reaches_everything_with_visible_focus(viewer: Viewer) -> None:
    viewer.open("curves", run=ONE)
    viewer.page.reload()  # so that the first key reaches the first element
    viewer.page.wait_for_selector("main[aria-busy=false]")
    reached = set()
    for _ in range(40):
        viewer.page.keyboard.press("Tab")
        name, outline = viewer.page.evaluate(FOCUSED)
        reached.add(name)
        assert outline != "none" or name == "", name
    assert {"Runs", "Trajectories", "Keyboard shortcuts", "Success as CSV", "Success as PNG"} <= reached
    assert any(name.startswith("Entropy: ") for name in reached) or any(name.startswith("Reward: ") for name in reached)
    assert any(name.startswith("alarm: step 2") for name in reached)


def test_screenshots_of_real_runs(page: "Page") -> None:
    """For the docs: TURNWISE_SCREENSHOTS=docs/pictures TURNWISE_VIEWED=runs pytest tests/viewer/test_page_looks.py"""
    if not (SHOTS and VIEWED):
        pytest.skip("set TURNWISE_SCREENSHOTS and TURNWISE_VIEWED to folders for screenshots and runs")
    names = sorted(path.parent.name for path in Path(VIEWED).glob("*/config.toml"))[:3]
    with serving(Path(VIEWED)) as address:
        real = Viewer(page, Path(VIEWED), address)
        page.set_viewport_size({"width": 1280, "height": 860})
        played = real.trajectories(names[0]).items()
        number = max(number for number, row in played if row["status"] == "succeeded" and len(row["turns"]) > 2)
        views: dict[str, dict[str, Any]] = {
            "runs": {},
            "curves": {"run": names},
            "trajectories": {"run": names[0]},
            "trajectory": {"run": names[0], "number": number},
            "tokens": {"run": names[0], "number": number},
            "before_after": {"run": names[0]},
        }
        for view, entries in views.items():
            real.open(view, **entries)
            page.wait_for_timeout(1500)
            page.screenshot(path=Path(SHOTS) / f"{view}.png")
