"""Hostile content in a real browser is shown and not executed."""

from typing import Any

from browser_for_tests import HOSTILE, NASTY, Viewer

from opened_page_for_tests import expect

VISIBLE = NASTY.replace("\x1b", "⟦ESC⟧").replace("\u202e", "⟦RLO⟧")
VIEWS: list[tuple[str, dict[str, Any]]] = [
    ("runs", {}),
    ("curves", {"run": HOSTILE, "filter": "img"}),
    ("trajectories", {"run": HOSTILE}),
    ("trajectory", {"run": HOSTILE, "number": 0}),
    ("group", {"run": HOSTILE, "step": 1, "group": 0}),
    ("tokens", {"run": HOSTILE, "number": 1}),
    ("compare", {"one": HOSTILE, "other": HOSTILE}),
]


def test_markup_is_text_in_every_view(viewer: Viewer) -> None:
    for view, entries in VIEWS:
        viewer.open(view, **entries)
        expect(viewer.page.locator("main")).to_contain_text("<")
        assert viewer.page.evaluate("window.ran") is None, view
        assert viewer.page.locator("main script, main b b, main [onerror]").count() == 0, view
        assert viewer.page.locator("main img:not(.picture, .context-images img)").count() == 0, view


def test_invisible_characters_become_visible_marks(viewer: Viewer) -> None:
    viewer.open("trajectory", run=HOSTILE, number=0)
    context = viewer.page.locator(".context .text").first.inner_text()
    assert context == VISIBLE
    assert all(mark not in viewer.page.locator("main").inner_text() for mark in "\x1b\u202e")
    viewer.open("tokens", run=HOSTILE, number=0)
    assert viewer.page.locator('.token[data-id="2"]').inner_text() == " ⟦RLO⟧a"
    assert viewer.page.locator('.token[data-id="3"]').inner_text() == "⟦ESC⟧[0m"


def test_script_in_a_picture_is_not_executed(viewer: Viewer) -> None:
    """Pictures are SVG, shown as images: a script in them cannot run."""
    viewer.open("runs")
    start = "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9' onload='parent.ran=1'>"
    svg = f"{start}<script>parent.ran=1</script></svg>"
    script = """async (svg) => {
        const { stateElement } = await import("/static/states.js");
        const image = stateElement({ svg, title: "x" });
        document.body.append(image);
        await image.decode();
        return [image.tagName, image.naturalWidth];
    }"""
    assert viewer.page.evaluate(script, svg) == ["IMG", 9]
    assert viewer.page.evaluate("window.ran") is None


def test_page_allows_no_inline_script(viewer: Viewer) -> None:
    viewer.open("runs")
    viewer.page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran=1'}))"
    )
    assert viewer.page.evaluate("window.ran") is None
    assert any("Content Security Policy" in problem for problem in viewer.problems)
    viewer.problems.clear()
