"""Trajectories in a real browser: list, conversation, groups and comparison."""

import re
from urllib.parse import unquote

import pytest
from browser_for_tests import GAINED, HOSTILE, LOST, ONE, OTHER, STEPS, TWO, Viewer

from opened_page_for_tests import expect
from turnwise.pictures.picture import draw_picture_svg

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
    expect(viewer.page.locator(ROWS)).to_have_count(sum(each["step"] == 1 for each in stored.values()))
    status = min(stored.values(), key=lambda each: each["step"])["status"]
    viewer.page.get_by_role("combobox", name="Status", exact=True).select_option(status)
    expected = [place for place, each in stored.items() if each["step"] == 1 and each["status"] == status]
    expect(viewer.page.locator(ROWS)).to_have_count(len(expected))
    assert sorted(numbers(viewer)) == expected
    viewer.page.go_back()
    expect(viewer.page.locator(ROWS)).to_have_count(sum(each["step"] == 1 for each in stored.values()))


def test_search_ignores_case(viewer: Viewer) -> None:
    stored = viewer.trajectories(ONE)
    viewer.open("trajectories", run=ONE)
    viewer.page.locator("#search").fill("<ANSWER>up")
    viewer.page.keyboard.press("Enter")
    expected = [
        place
        for place, each in stored.items()
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
    number, row = list(viewer.trajectories(ONE).items())[5]
    viewer.open("trajectory", run=ONE, number=number)
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


def test_context_shows_its_images_and_notes_for_missing_ones(viewer: Viewer) -> None:
    viewer.open("trajectory", run=HOSTILE, number=1)
    image = viewer.page.locator(".context-images img")
    expect(image).to_have_count(1)
    viewer.page.wait_for_function("document.querySelector('.context-images img').naturalWidth === 1")
    expect(viewer.page.locator(".context-images .note")).to_have_text(f"image {'0' * 32} is not in the run folder")


def test_context_marks_an_image_among_its_text(viewer: Viewer) -> None:
    viewer.open("trajectory", run=HOSTILE, number=3)
    parts = viewer.page.locator(".context-text > *")
    assert parts.all_text_contents()[:4] == ["<|end|>", "漢", "[image]", "漢"]


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
    moved = [each for each in viewer.trajectories(ONE).items() if each[1]["start"] != each[1]["turns"][0]["picture"]]
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
    members = [each for each in viewer.trajectories(ONE).values() if (each["step"], each["group"]) == (STEPS, 1)]
    viewer.open("group", run=ONE, step=STEPS, group=1)
    expect(viewer.page.locator(".column-head")).to_have_count(len(members))
    assert len(members) == 4
    expect(viewer.page.locator(".column-head img")).to_have_count(4)
    expect(viewer.page.locator(".column-head").first).to_contain_text(re.compile(r"reward [+−]?\d"))
    firsts = viewer.page.locator('.turn[data-turn="0"] .model .text').all_inner_texts()
    assert [each.strip() for each in firsts] == [each["turns"][0]["message"]["content"].strip() for each in members]
    lines = viewer.page.locator('.turn[data-turn="0"]').evaluate_all(
        "cards => new Set(cards.map((card) => card.offsetTop)).size"
    )
    assert lines == 1


def test_compare_shows_tasks_of_both_runs(viewer: Viewer) -> None:
    seeds = {each["task"]["seed"] for each in viewer.trajectories(ONE).values()}
    viewer.open("compare", one=ONE, other=OTHER, episodes="training")
    expect(viewer.page.locator(".tasks tbody tr")).to_have_count(len(seeds))
    second = viewer.page.locator(".tasks tbody tr").nth(1)
    seed = second.get_attribute("data-seed")
    second.get_by_role("link").click()
    expect(viewer.page.locator(".compared h2")).to_have_text(f"frozen_lake · seed {seed}")
    expect(viewer.page.locator(".column-head a")).to_have_text([ONE, OTHER])
    expect(second).to_contain_text(re.compile(r"succeeded mean reward [+−]?[\d.]+"))
    tries = sum(str(each["task"]["seed"]) == seed for each in viewer.trajectories(ONE).values())
    expect(viewer.page.locator(".compared select").first.locator("option")).to_have_count(tries)
    viewer.page.locator(".compared select").first.select_option("2")
    expect(viewer.page).to_have_url(re.compile("m1=2"))
    viewer.open("compare", one=TWO, other=HOSTILE)
    expect(viewer.page.get_by_text("They share no task")).to_be_visible()


def test_before_and_after_lists_changed_outcomes_first(viewer: Viewer) -> None:
    before, after = (list(viewer.trajectories(OTHER, name).values()) for name in ("before", "after"))
    viewer.open("curves", run=OTHER)
    viewer.page.get_by_role("link", name="Before and after training").click()
    expect(viewer.page.locator(".headline")).to_have_text("25.0 % of 8 tasks solved before training, 37.5 % after it.")
    gained, lost = sorted(set(GAINED) - set(LOST)), sorted(set(LOST) - set(GAINED))
    same = [number for number in range(8) if number not in (*gained, *lost)]
    rows = viewer.page.locator(".tasks tbody tr")
    seeds = rows.evaluate_all("rows => rows.map((row) => Number(row.dataset.seed))")
    assert seeds == [before[number]["task"]["seed"] for number in (*gained, *lost, *same)]
    outcomes = [each.split("\t")[0].strip() for each in rows.all_inner_texts()]
    assert outcomes == ["▲ solved now"] * 2 + ["▼ no longer solved"] + ["= same"] * 5
    expect(viewer.page.locator(".column-head a")).to_have_text(["Before training", "After training"])
    expect(viewer.page.locator(".column-head .state")).to_have_text(["… out of turns", "✓ succeeded"])
    said = viewer.page.locator('.turn[data-turn="0"] .model .text').all_inner_texts()
    stored = [side[gained[0]]["turns"][0]["message"]["content"] for side in (before, after)]
    assert [each.strip() for each in said] == [each.strip() or "(empty message)" for each in stored]


def test_before_and_after_filters_and_moves_on_a_phone(viewer: Viewer) -> None:
    viewer.page.set_viewport_size({"width": 390, "height": 800})
    viewer.open("before_after", run=OTHER)
    viewer.page.get_by_role("button", name="no longer solved 1").click()
    expect(viewer.page.locator(".tasks tbody tr")).to_have_count(1)
    expect(viewer.page.locator(".column-head .state")).to_have_text(["✓ succeeded", "… out of turns"])
    viewer.page.get_by_role("button", name="all 8").click()
    expect(viewer.page.locator(".tasks tbody tr")).to_have_count(8)
    viewer.page.get_by_role("button", name="Next ›").click()
    second = sorted(set(GAINED) - set(LOST))[1]
    expect(viewer.page.locator(".compared h2")).to_have_text(f"Task {second}")
    viewer.page.get_by_role("link", name="After training", exact=True).click()
    expect(viewer.page.locator("h1")).to_have_text(f"after training · task {second}")
    viewer.page.get_by_role("link", name="Before and after").click()
    expect(viewer.page.locator(".compared h2")).to_have_text(f"Task {second}")


def test_before_and_after_explains_missing_evaluations(viewer: Viewer) -> None:
    viewer.open("before_after", run=HOSTILE)
    expect(viewer.page.locator(".note")).to_contain_text("unless record.trajectories is 0")


def test_list_shows_the_episodes_of_an_evaluation(viewer: Viewer) -> None:
    viewer.open("trajectories", run=OTHER)
    viewer.page.get_by_label("Episodes").select_option("before training")
    expect(viewer.page.locator(ROWS)).to_have_count(8)
    assert numbers(viewer) == list(viewer.trajectories(OTHER, "before"))
    viewer.page.get_by_role("combobox", name="Status", exact=True).select_option("out of turns")
    expect(viewer.page.locator(ROWS)).to_have_count(8 - len(LOST))


def test_list_shows_cards_with_answers_on_a_phone(viewer: Viewer) -> None:
    viewer.page.set_viewport_size({"width": 390, "height": 800})
    viewer.open("trajectories", run=ONE, sort="-number")
    row = list(viewer.trajectories(ONE).values())[-1]
    card = viewer.page.locator(ROWS).first
    answer = card.locator(".col-answer")
    said = re.sub(r".*<answer>|</answer>.*", "", row["turns"][-1]["message"]["content"], flags=re.DOTALL)
    expect(answer).to_have_text(" ".join(said.split())[:160])
    assert viewer.page.locator("thead").is_hidden()
    box, page = answer.bounding_box(), viewer.page.viewport_size
    assert box is not None and page is not None and box["width"] > 0.8 * page["width"]
    viewer.page.get_by_label("Sort by").select_option("-tokens")
    expect(viewer.page).to_have_url(re.compile("sort=-tokens"))


def test_compare_without_two_runs_explains_what_to_do(viewer: Viewer) -> None:
    viewer.open("compare")
    expect(viewer.page.locator(".note")).to_contain_text("Choose two runs or evaluations above")
    viewer.open("compare", one=ONE)
    expect(viewer.page.locator(".note")).to_contain_text(f"Choose a second run or evaluation to compare {ONE} with")
    viewer.page.get_by_role("link", name="before and after training").click()
    expect(viewer.page.locator(".headline")).to_be_visible()


def test_compare_of_two_runs_shows_their_evaluation_after_training(viewer: Viewer) -> None:
    viewer.open("compare", one=ONE, other=OTHER)
    expect(viewer.page.locator(".tasks tbody tr")).to_have_count(8)
    expect(viewer.page.get_by_label("episodes")).to_have_value("after")
