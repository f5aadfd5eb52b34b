"""The token view in a real browser shows the stored numbers."""

import json
from typing import TYPE_CHECKING, Any

import pytest
from browser_for_tests import HOSTILE, LONG, LONG_TOKENS, ONE, ONE_PIXEL, Viewer

from opened_page_for_tests import expect
from turnwise.core.images import image_hash

if TYPE_CHECKING:
    from playwright.sync_api import Locator

COLUMNS = {
    "logprob": "action_logprobs",
    "learner_logprob": "learner_logprobs",
    "advantage": "advantages",
    "entropy": "entropies",
}


def shown(viewer: Viewer) -> dict[str, str]:
    """Return the fields of the inspector."""
    return dict(
        viewer.page.locator(".inspector [data-field]").evaluate_all(
            "all => all.map((each) => [each.dataset.field, each.textContent])"
        )
    )


def check(viewer: Viewer, turn: dict[str, Any], place: int) -> None:
    """Check the inspector's numbers against the stored ones of a sampled token, to the last digit."""
    fields = shown(viewer)
    assert int(fields["id"]) == turn["action_ids"][place]
    for field, column in COLUMNS.items():
        assert float(fields[field]) == turn[column][place]
    assert float(fields["difference"]) == turn["learner_logprobs"][place] - turn["action_logprobs"][place]
    assert {"true": 1, "false": 0}.get(fields["mask"], fields["mask"]) in (
        turn["loss_mask"][place],
        str(turn["loss_mask"][place]),
    )


def sampled(viewer: Viewer, turn: int, place: int) -> "Locator":
    return viewer.page.locator(f'.token.action[data-turn="{turn}"][data-index="{place}"]')


def test_hover_shows_the_stored_numbers_of_a_token(viewer: Viewer) -> None:
    number, row = list(viewer.trajectories(ONE).items())[2]
    viewer.open("tokens", run=ONE, number=number)
    for index, turn in enumerate(row["turns"]):
        for place in (0, len(turn["action_ids"]) - 1):
            sampled(viewer, index, place).hover()
            check(viewer, turn, place)


def test_arrow_keys_move_between_tokens(viewer: Viewer) -> None:
    number, row = list(viewer.trajectories(ONE).items())[3]
    viewer.open("tokens", run=ONE, number=number)
    viewer.page.keyboard.press("i")
    turn = row["turns"][0]
    for place in range(len(turn["action_ids"])):
        if place:
            viewer.page.keyboard.press("ArrowRight")
        check(viewer, turn, place)
    viewer.page.keyboard.press("Home")
    viewer.page.keyboard.press("ArrowLeft")
    fields = shown(viewer)
    assert (
        int(fields["id"]) == turn["context_ids"][-1]
        and fields["kind"].startswith("context")
        and "advantage" not in fields
    )
    assert len(row["turns"]) > 1
    viewer.page.keyboard.press("ArrowDown")
    check(viewer, row["turns"][1], 0)
    viewer.page.keyboard.press("End")
    check(viewer, row["turns"][1], len(row["turns"][1]["action_ids"]) - 1)


def test_tokens_are_shown_in_order(viewer: Viewer) -> None:
    number, row = list(viewer.trajectories(ONE).items())[2]
    names = {
        each["id"]: each["text"] for each in map(json.loads, (viewer.root / ONE / "trajectories/tokens.jsonl").open())
    }
    viewer.open("tokens", run=ONE, number=number)
    expect(viewer.page.locator(".token-turn")).to_have_count(len(row["turns"]))
    tokens = viewer.page.locator(".token-run .token").evaluate_all(
        "all => all.map((each) => [Number(each.dataset.id), each.textContent])"
    )
    ids = [each for turn in row["turns"] for each in (*turn["context_ids"], *turn["action_ids"])]
    assert [each for each, _ in tokens] == ids
    assert all(text.replace("↵", "") == names[each] for each, text in tokens)


def test_colours_come_with_line_styles(viewer: Viewer) -> None:
    turn = viewer.trajectories(HOSTILE)[0]["turns"][0]
    viewer.open("tokens", run=HOSTILE, number=0)
    style = """(token) => {
        const { backgroundColor, borderBottomStyle, borderBottomWidth } = getComputedStyle(token);
        return [backgroundColor, borderBottomStyle, borderBottomWidth];
    }"""
    above, below = (sampled(viewer, 0, place).evaluate(style) for place in (0, 1))
    assert turn["advantages"][:2] == [0.5, -0.5]
    assert above[0] != below[0] and (above[1], below[1]) == ("solid", "dotted")
    assert viewer.page.locator(".token.context").first.evaluate(style)[:2] == ["rgba(0, 0, 0, 0)", "none"]
    expect(viewer.page.locator(".token-legend .sample")).to_have_text(["−0.5", "−0.25", "0", "+0.25", "+0.5"])
    viewer.page.get_by_label("Log-probability").check(force=True)
    widths = [float(sampled(viewer, 0, place).evaluate(style)[2].removesuffix("px")) for place in range(4)]
    assert widths == sorted(widths) and widths[0] < widths[3]  # they are 0, -0.001, -0.002 and -0.003
    viewer.page.get_by_label("Loss mask").check(force=True)
    assert [
        sampled(viewer, 0, place).evaluate("(each) => each.classList.contains('struck')") for place in range(4)
    ] == [False, True] * 2
    expect(viewer.page.locator(".token-legend")).to_contain_text("4 of 7 sampled tokens are in the loss")
    viewer.page.get_by_label("Entropy").check(force=True)
    expect(viewer.page.locator(".token-legend")).to_contain_text("not recorded")


def test_turns_and_segments_have_headings(viewer: Viewer) -> None:
    viewer.open("tokens", run=HOSTILE, number=0)
    marks = viewer.page.locator(".tokens > *").evaluate_all(
        "all => all.map((each) => (each.querySelector('h4') ?? each).firstChild.textContent)"
    )
    assert marks == ["Segment 1", "Turn 1", "Segment 2", "Turn 2"]
    viewer.open("tokens", run=ONE, number=0)
    expect(viewer.page.locator(".segment")).to_have_count(1)


def test_long_token_lists_are_rendered_in_part(viewer: Viewer) -> None:
    viewer.open("tokens", run=LONG, number=0)
    sampled(viewer, 0, 0).hover()
    assert viewer.page.locator(".token").count() < LONG_TOKENS / 10
    viewer.page.keyboard.press("i")
    viewer.page.keyboard.press("End")
    expect(viewer.page.locator('.inspector [data-field="position"]')).to_have_text(f"turn 1, token {LONG_TOKENS - 1}")
    assert viewer.page.locator(".token").count() < LONG_TOKENS / 10
    assert float(shown(viewer)["logprob"]) == pytest.approx(-0.001 * ((LONG_TOKENS - 1) % 1000))


def test_touch_screens_show_tap_instructions(viewer: Viewer) -> None:
    number = next(iter(viewer.trajectories(ONE)))
    viewer.open("tokens", run=ONE, number=number)
    expect(viewer.page.locator(".inspector")).to_contain_text("Point at a token")
    devtools = viewer.page.context.new_cdp_session(viewer.page)
    devtools.send("Emulation.setTouchEmulationEnabled", {"enabled": True})
    viewer.open("tokens", run=ONE, number=number, by="entropy")
    expect(viewer.page.locator(".inspector")).to_contain_text("Tap a token")
    devtools.send("Emulation.setTouchEmulationEnabled", {"enabled": False})


def test_image_tokens_are_shown_as_such(viewer: Viewer) -> None:
    viewer.open("tokens", run=HOSTILE, number=3)
    tokens = viewer.page.locator(".token.context")
    assert tokens.all_text_contents() == ["<|end|>", "漢", "[image]", "[image]", "漢"]
    tokens.nth(3).hover()
    fields = shown(viewer)
    assert fields["id"] == f"image {image_hash(ONE_PIXEL)}, token 1"
    assert (fields["special"], fields["kind"]) == ("yes", "context (not sampled)")
