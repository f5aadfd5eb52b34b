"""Lanes of the workers on the page of a run, in a real browser."""

from browser_for_tests import HOSTILE, NASTY_LANE, ONE, SPAN_STEPS, Viewer

from opened_page_for_tests import expect

LANES = ".swimlanes .lane-grid"


def test_lanes_show_the_last_steps(viewer: Viewer) -> None:
    viewer.open("run", run=ONE)
    expect(viewer.page.locator(".swimlanes h2")).to_have_text(f"Who did what: steps {SPAN_STEPS - 3} to {SPAN_STEPS}")
    assert viewer.texts(f"{LANES} b")[:3] == ["engine replica 0", NASTY_LANE, "training loop"]
    update = viewer.page.locator(f"{LANES} [title^='update: 1.00 s, from 1.00 s']")
    expect(update).to_have_count(1)
    lane = viewer.page.locator(f"{LANES} .lane").last
    boxes = [found.bounding_box() for found in (update, lane)]
    assert boxes[0] is not None and boxes[1] is not None
    assert abs(boxes[0]["width"] / boxes[1]["width"] - 1 / 8) < 0.01, "1 s of four steps of 2 s"
    expect(viewer.page.locator(f"{LANES} .waits")).to_have_count(4)


def test_lanes_have_a_text_alternative(viewer: Viewer) -> None:
    viewer.open("run", run=ONE)
    drawing = viewer.page.get_by_role("img", name="engine replica 0 worked 75.0 %, ")
    expect(drawing).to_have_count(1)
    assert "training loop worked 50.0 %" in (drawing.get_attribute("aria-label") or "")
    viewer.page.locator(".swimlanes summary").press("Enter")
    rows = viewer.page.locator(".swimlanes tbody tr")
    expect(rows.first).to_have_text("engine replica 0episodes6.0075.0 %")
    expect(rows.last).to_have_text("training loopupdate4.0050.0 %")


def test_earlier_steps_are_reached_by_keyboard(viewer: Viewer) -> None:
    viewer.open("run", run=ONE)
    title = viewer.page.locator(".swimlanes h2")
    viewer.page.get_by_role("button", name="Earlier steps").press("Enter")
    expect(title).to_have_text("Who did what: steps 1 to 2")
    expect(viewer.page.get_by_role("button", name="Earlier steps")).to_be_disabled()
    viewer.page.get_by_role("button", name="Later steps").press("Enter")
    expect(title).to_have_text(f"Who did what: steps {SPAN_STEPS - 3} to {SPAN_STEPS}")


def test_run_without_spans_has_no_lanes(viewer: Viewer) -> None:
    viewer.open("run", run=HOSTILE)
    expect(viewer.page.locator(".run-facts")).to_be_visible()
    expect(viewer.page.locator(".swimlanes")).to_be_hidden()
