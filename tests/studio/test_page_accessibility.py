"""The studio's pages for people who use a keyboard, a screen reader, a phone or a dark screen."""

import shutil
from pathlib import Path

import pytest
from studio_for_tests import StudioPage

from accessibility_for_tests import find_accessibility_problems
from opened_page_for_tests import expect

LOOKS = [(1280, "light"), (1280, "dark"), (390, "light")]


def check(opened: StudioPage, where: str) -> None:
    page = opened.page
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert find_accessibility_problems(page) == [], f"{where}, {width} pixels, {scheme}"
    page.set_viewport_size({"width": 1280, "height": 800})
    page.emulate_media(color_scheme="light")


@pytest.mark.parametrize("view", ["jobs", "new_run", "run", "play"])
def test_view_is_accessible(opened: StudioPage, trained: Path, view: str) -> None:
    shutil.copytree(trained, Path("runs/lake"))
    opened.queue.add(["x"], title="a job", run=Path("runs/x"))
    opened.open(view, **({"target": "bandit"} if view == "new_run" else {"run": "lake"}))
    if view == "new_run":
        expect(opened.page.locator(".new-run-message")).to_contain_text("valid")
    check(opened, view)


def test_page_of_a_loaded_checkpoint_is_accessible(opened: StudioPage, trained: Path) -> None:
    shutil.copytree(trained, Path("runs/lake"))
    opened.open("play", run="lake")
    page = opened.page
    page.get_by_role("button", name="Load").click()
    expect(page.get_by_role("status").filter(has_text="The model replies")).to_be_visible()
    check(opened, "a loaded checkpoint")
    page.keyboard.press("n")
    expect(page.locator(".pending")).to_be_visible()
    page.keyboard.press("a")
    expect(page.locator(".turn:not(.pending)")).to_have_count(1)
    check(opened, "an episode")


def test_problems_are_found(opened: StudioPage) -> None:
    opened.open("jobs")
    opened.page.evaluate(
        """() => {
            const main = document.getElementById("main");
            main.innerHTML = "<h1>a</h1><h1>b</h1><button></button><p>pale</p><i id=x></i><i id=x tabindex=2></i>";
            main.querySelector("p").style.color = "#bbb";
            document.querySelector(".bar nav").style.maxWidth = "9px";
            main.querySelector("h1").style.width = "3000px";
        }"""
    )
    problems = " | ".join(find_accessibility_problems(opened.page))
    kinds = ("no name: <button", "contrast 1.", "id twice: x", "order of its own", "2 headings", "wider", "sideways")
    for part in kinds:
        assert part in problems
