"""Every view fits a wide and a narrow screen; with TURNWISE_SCREENSHOTS=DIR, pictures of them are written there."""

import os
from pathlib import Path
from typing import Any

import pytest
from browser_for_tests import HOSTILE, ONE, OTHER, STEPS, TWO, Viewer

FOCUSED = """(() => {
    const at = document.activeElement;
    return [at.getAttribute("aria-label") ?? at.textContent.trim(), getComputedStyle(at).outlineStyle];
})()"""
SHOTS = os.environ.get("TURNWISE_SCREENSHOTS")
VIEWS: dict[str, dict[str, Any]] = {
    "runs": {"sel": [ONE, OTHER], "filter": "lake"},
    "curves": {"run": [ONE, TWO, OTHER]},
    "trajectories": {"run": ONE},
    "trajectory": {"run": ONE, "number": 3},
    "tokens": {"run": ONE, "number": 3},
    "group": {"run": ONE, "step": STEPS, "group": 0},
    "compare": {"one": ONE, "other": OTHER},
}


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_no_view_scrolls_sideways(viewer: Viewer, width: int, scheme: Any) -> None:
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


def test_all_can_be_reached_by_the_tab_key_and_shows_its_focus(viewer: Viewer) -> None:
    viewer.open("curves", run=ONE)
    reached = set()
    for _ in range(40):
        viewer.page.keyboard.press("Tab")
        name, outline = viewer.page.evaluate(FOCUSED)
        reached.add(name)
        assert outline != "none" or name == "", name
    assert {"Runs", "Trajectories", "Keys", "Success as CSV", "Success as PNG"} <= reached
    assert any(name.startswith("Entropy: ") for name in reached) or any(name.startswith("Reward: ") for name in reached)
    assert any(name.startswith("alarm: step 2") for name in reached)
