"""Trajectories in a real browser: list, conversation, groups and comparison."""

import re
from urllib.parse import unquote

import pytest
from browser_for_tests import HOSTILE, ONE, OTHER, STEPS, TWO, Viewer, expect

from turnwise.report.pictures.picture import draw_picture_svg

ROWS = "table.list tbody tr"


def numbers(viewer: Viewer) -> list[int]:
    return [
        int(each) for each in viewer.page.locator(ROWS).evaluate_all("rows => rows.map((row) => row.dataset.number)")
    ]


def test_list_sorts_and_filters(viewer: Viewer) -> None:
    stored = viewer.trajectories(ONE)
    viewer.open("trajectories", run=ONE)
    expect(viewer.page.locator(ROWS)).to_have_count(len(stored))
    viewer.page.get_by_role("button", name="Tokens", exact=True).click()
    expect(viewer.page.locator("th[aria-sort=descending]")).to_have_text("Tokens ↓")
    tokens = [stored[number]["tokens"] for number in numbers(viewer)]
    assert tokens == sorted(tokens, reverse=True) and len(set(tokens)) > 1
    viewer.page.get_by_role("button", name="Next step").click()
    expect(viewer.page.locator(ROWS)).to_have_count(sum(each["step"] == 1 for each in stored))
    status = stored[0]["status"]
    viewer.page.get_by_label("Status").select_option(status)
    expected = [place for place, each in enumerate(stored) if each["step"] == 1 and each["status"] == status]
    expect(viewer.page.locator(ROWS)).to_have_count(len(expected))
    assert sorted(numbers(viewer)) == expected
    viewer.page.go_back()
    expect(viewer.page.locator(ROWS)).to_have_count(sum(each["step"] == 1 for each in stored))


def test_search_ignores_case(viewer: Viewer) -> None:
    stored = viewer.trajectories(ONE)
    viewer.open("trajectories", run=ONE)
    viewer.page.locator("#search").fill("<ANSWER>up")
    viewer.page.keyboard.press("Enter")
    expected = [
        place
        for place, each in enumerate(stored)
        if any("<answer>Up" in turn["message"]["content"] for turn in each["turns"])
    ]
    assert expected and len(expected) < len(stored)
    expect(viewer.page.locator(".pager")).to_contain_text(f"searched {len(stored)} of {len(stored)}")
    assert numbers(viewer) == expected
    viewer.page.locator(ROWS).first.locator("td").last.click()
    expect(viewer.page.locator(".turn").first).to_be_visible()
    viewer.page.keyboard.press("j")
    expect(viewer.page).to_have_url(re.compile(rf"number={expected[1]}\b"))


def test_conversation_shows_rewards_and_advantages(viewer: Viewer) -> None:
    row = viewer.trajectories(ONE)[5]
    viewer.open("trajectory", run=ONE, number=5)
    cards = viewer.page.locator(".turn")
    expect(cards).to_have_count(len(row["turns"]))
    for place, turn in enumerate(row["turns"]):
        card = cards.nth(place)
        assert card.locator(".model .text").inner_text().strip() == (
            turn["message"]["content"].strip() or "(empty message)"
        )
        reward = re.search(r"reward ([+−]?)(\S+)", card.locator(".chips").inner_text())
        assert reward is not None and float(reward[2]) == pytest.approx(abs(turn["turn_reward"]), rel=1e-3)
        advantage = re.search(r"advantage ([+−]?)(\d\S*)", card.locator(".chips").inner_text())
        mean = sum(turn["advantages"]) / len(turn["advantages"])
        assert advantage is not None and float(advantage[1].replace("−", "-") + advantage[2]) == pytest.approx(
            mean, rel=1e-3
        )
    context = viewer.page.locator(".turn .context").first.inner_text()
    assert row["turns"][0]["context"].rsplit("<|user|>", 1)[1].split("<|end|>")[0] in context


def test_conversation_marks_thinking_and_answer(viewer: Viewer) -> None:
    viewer.open("trajectory", run=HOSTILE, number=0)
    first = viewer.page.locator(".turn").first
    expect(first.locator(".part.answer")).to_have_text("Left")
    expect(first.locator(".part.think")).to_contain_text("漢字 かな 한글")


def test_incomplete_row_of_an_old_run_is_shown(viewer: Viewer) -> None:
    viewer.open("trajectory", run=HOSTILE, number=2)
    expect(viewer.page.locator(".turn .model")).to_contain_text("(empty message)")
    expect(viewer.page.locator(".turn .chips")).to_contain_text("not trained")
    viewer.open("tokens", run=HOSTILE, number=2)
    expect(viewer.page.locator(".token.action")).to_have_text(["<script>", "漢"])
    expect(viewer.page.locator(".token-legend")).to_contain_text("was not recorded")


def drawn(viewer: Viewer) -> str:
    """Return the SVG of the picture that is shown."""
    return unquote(viewer.page.locator("img.picture").get_attribute("src") or "").removeprefix("data:image/svg+xml,")


def test_keys_step_through_and_play_the_states(viewer: Viewer) -> None:
    moved = [each for each in enumerate(viewer.trajectories(ONE)) if each[1]["start"] != each[1]["turns"][0]["picture"]]
    number, row = max(moved, key=lambda each: len(each[1]["turns"]))
    viewer.open("trajectory", run=ONE, number=number)
    states, label = len(row["turns"]) + 1, viewer.page.locator(".player output")
    assert states > 2
    expect(label).to_have_text(f"start · 1/{states}")
    assert drawn(viewer) == draw_picture_svg(row["start"])
    assert viewer.page.locator("img.picture").evaluate("(image) => image.decode().then(() => image.naturalWidth)") > 0
    viewer.page.keyboard.press("ArrowRight")
    expect(label).to_have_text(f"after turn 1 · 2/{states}")
    assert drawn(viewer) == draw_picture_svg(row["turns"][0]["picture"])
    expect(viewer.page.locator(".turn.current")).to_have_attribute("data-turn", "0")
    viewer.page.keyboard.press("ArrowLeft")
    viewer.page.keyboard.press(" ")
    expect(label).to_have_text(f"after turn 1 · 2/{states}")
    viewer.page.get_by_role("button", name=f"Turn {states - 1}").click()
    expect(label).to_have_text(f"after turn {states - 1} · {states}/{states}")


def test_j_and_k_move_through_the_list(viewer: Viewer) -> None:
    viewer.open("trajectories", run=ONE, sort="-tokens")
    order = numbers(viewer)
    viewer.page.locator(ROWS).nth(1).locator("a.open").first.click()
    expect(viewer.page.locator(".turn").first).to_be_visible()
    for key, place in (("j", 2), ("j", 3), ("k", 2), ("k", 1), ("k", 0)):
        viewer.page.keyboard.press(key)
        expect(viewer.page).to_have_url(re.compile(rf"number={order[place]}\b.*at={place}$"))
        expect(viewer.page.locator("main")).to_have_attribute("aria-busy", "false")
    viewer.page.keyboard.press("k")
    expect(viewer.page.get_by_text("This is the first one.")).to_be_visible()
    viewer.page.go_back()
    assert viewer.entries()["sort"] == "-tokens" and "trajectories" in viewer.page.url


def test_group_members_are_side_by_side(viewer: Viewer) -> None:
    members = [each for each in viewer.trajectories(ONE) if (each["step"], each["group"]) == (STEPS, 1)]
    viewer.open("group", run=ONE, step=STEPS, group=1)
    expect(viewer.page.locator(".column-head")).to_have_count(len(members))
    assert len(members) == 4
    expect(viewer.page.locator(".column-head img")).to_have_count(4)
    firsts = viewer.page.locator('.turn[data-turn="0"] .model .text').all_inner_texts()
    assert [each.strip() for each in firsts] == [each["turns"][0]["message"]["content"].strip() for each in members]
    lines = viewer.page.locator('.turn[data-turn="0"]').evaluate_all(
        "cards => new Set(cards.map((card) => card.offsetTop)).size"
    )
    assert lines == 1


def test_compare_shows_tasks_of_both_runs(viewer: Viewer) -> None:
    seeds = {each["task"]["seed"] for each in viewer.trajectories(ONE)}
    viewer.open("compare", one=ONE, other=OTHER)
    expect(viewer.page.locator(".tasks tbody tr")).to_have_count(len(seeds))
    second = viewer.page.locator(".tasks tbody tr").nth(1)
    seed = second.get_attribute("data-seed")
    second.get_by_role("link").click()
    expect(viewer.page.locator(".compared h2")).to_have_text(f"frozen_lake · seed {seed}")
    expect(viewer.page.locator(".column-head a")).to_have_text([ONE, OTHER])
    tries = sum(str(each["task"]["seed"]) == seed for each in viewer.trajectories(ONE))
    expect(viewer.page.locator(".compared select").first.locator("option")).to_have_count(tries)
    viewer.page.locator(".compared select").first.select_option("2")
    expect(viewer.page).to_have_url(re.compile("m1=2"))
    viewer.open("compare", one=TWO, other=HOSTILE)
    expect(viewer.page.get_by_text("They share no task")).to_be_visible()
