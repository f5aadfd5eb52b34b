"""The view of runs in a real browser."""

import json
import tomllib

from browser_for_tests import GAINED, HOSTILE, LONG, LOST, ONE, OTHER, STEPS, TWO, Viewer

from opened_page_for_tests import expect
from turnwise.config.schema import Config

NAMES = "table.runs td.col-id"


def test_start_page_lists_all_runs(viewer: Viewer) -> None:
    viewer.page.goto(viewer.address)
    expect(viewer.page.locator("table.runs tbody tr")).to_have_count(5)
    row = viewer.page.locator(f'tr[data-run="{ONE}"]')
    after = viewer.metrics(ONE)[-1]
    expect(row.locator(".col-environment")).to_have_text("frozen_lake")
    expect(row.locator(".col-step")).to_have_text(f"{STEPS} / {STEPS}")
    expect(row.locator(".col-success b")).to_have_text(f"{100 * after['eval/success']:.1f} %")
    low, high = (100 * after[f"eval/success_{side}"] for side in ("low", "high"))
    expect(row.locator(".col-success small")).to_have_text(f"{low:.1f} % to {high:.1f} %")
    expect(row.locator(".col-status")).to_contain_text("finished")


def test_headings_sort_and_the_address_keeps_the_order(viewer: Viewer) -> None:
    viewer.open("runs")
    viewer.page.get_by_role("button", name="Run", exact=True).click()
    assert viewer.texts(NAMES) == sorted([ONE, TWO, OTHER, HOSTILE, LONG])
    viewer.page.get_by_role("button", name="Run", exact=True).click()
    assert viewer.texts(NAMES) == sorted([ONE, TWO, OTHER, HOSTILE, LONG], reverse=True)
    viewer.page.reload()
    expect(viewer.page.locator(NAMES).first).to_have_text(LONG)
    viewer.page.get_by_role("button", name="Step").click()
    assert set(viewer.texts(NAMES)[:3]) == {ONE, TWO, OTHER}


def test_filter_matches_any_column(viewer: Viewer) -> None:
    viewer.open("runs")
    viewer.page.keyboard.press("/")
    viewer.page.keyboard.type("frozen fast")
    expect(viewer.page.locator(NAMES)).to_have_text([OTHER])
    assert viewer.entries()["filter"] == "frozen+fast"


def test_two_selected_runs_show_their_different_settings(viewer: Viewer) -> None:
    viewer.open("runs")
    viewer.page.get_by_label(f"Select {ONE}").check()
    viewer.page.get_by_label(f"Select {OTHER}").press("Space")
    settings = ["critic.learning_rate", "0.001", "0.005", "train.learning_rate", "0.001", "0.005"]
    expect(viewer.page.locator(".differences tbody tr > *")).to_have_text(settings)
    one, other = (tomllib.loads((viewer.root / run / "config.toml").read_text()) for run in (ONE, OTHER))
    assert (one["train"]["learning_rate"], other["train"]["learning_rate"]) == (0.001, 0.005)
    viewer.page.get_by_role("link", name="Overlay curves").click()
    expect(viewer.page.locator(".legend a")).to_have_text([ONE, OTHER])
    viewer.page.go_back()
    expect(viewer.page.get_by_label(f"Select {OTHER}")).to_be_checked()


def test_theme_follows_the_system_until_chosen(viewer: Viewer) -> None:
    viewer.page.emulate_media(color_scheme="dark")
    viewer.open("runs")
    paper = "getComputedStyle(document.querySelector('.bar')).backgroundColor"
    dark = viewer.page.evaluate(paper)
    viewer.page.keyboard.press("t")
    light = viewer.page.evaluate(paper)
    assert (dark, light) == ("rgb(21, 25, 30)", "rgb(255, 255, 255)")
    viewer.page.reload()
    assert viewer.page.evaluate(paper) == light


def test_question_mark_lists_the_keys(viewer: Viewer) -> None:
    viewer.open("curves", run=ONE)
    viewer.page.keyboard.press("?")
    expect(viewer.page.locator("dialog")).to_contain_text("in a panel: move the cursor")
    viewer.page.keyboard.press("Escape")
    expect(viewer.page.locator("dialog")).to_be_hidden()
    viewer.page.keyboard.press("1")
    expect(viewer.page.locator(NAMES)).to_have_count(5)


def test_unknown_run_shows_a_one_line_error(viewer: Viewer) -> None:
    viewer.open("trajectories", run="no/such")
    expect(viewer.page.get_by_role("alert")).to_have_count(1)
    assert "\n" not in viewer.page.get_by_role("alert").inner_text()
    viewer.problems.clear()  # the browser reports the 404 itself
    viewer.page.get_by_role("link", name="Runs").click()
    expect(viewer.page.locator(NAMES)).to_have_count(5)


def test_success_bars_have_one_scale(viewer: Viewer) -> None:
    viewer.open("runs")
    bars = viewer.page.locator(".whisker").evaluate_all("bars => bars.map((bar) => bar.getBoundingClientRect().width)")
    intervals = viewer.page.locator("table.runs tbody .success small").count()
    assert 0 < intervals < len(bars), "rows with and without an interval"
    assert len(set(bars)) == 1


def test_run_page_shows_results_curves_and_changed_settings(viewer: Viewer) -> None:
    viewer.open("runs")
    viewer.page.locator(NAMES).get_by_role("link", name=ONE).click()
    expect(viewer.page.locator("h1")).to_have_text(ONE)
    summary = json.loads((viewer.root / ONE / "summary.json").read_text())
    facts = viewer.page.locator(".run-facts")
    expect(facts).to_contain_text(f"Success before training{100 * summary['success_before']:.1f} %")
    expect(facts).to_contain_text(f"{STEPS} / {STEPS}")
    reward = [row["rollout/reward"] for row in viewer.metrics(ONE) if "rollout/reward" in row][-1]
    panel = viewer.page.locator('.panel[data-metric="rollout/reward"]')
    expect(panel.locator(".last")).to_have_text(f"{reward:.4g}".replace("-", "−"))
    changed = viewer.page.locator(".differences > .scroll tbody tr")
    steps = changed.filter(has_text="train.steps").locator("> *")
    expect(steps).to_have_text(["train.steps", str(STEPS), str(Config().train.steps)])
    expect(changed.filter(has_text="context")).to_have_count(0)
    viewer.page.locator(".differences summary").click()
    expect(viewer.page.locator(".differences details tr").filter(has_text="context")).to_be_visible()
    viewer.page.locator("main").get_by_role("link", name="Trajectories").click()
    viewer.page.wait_for_selector(".view-trajectories")
    assert viewer.entries()["run"] == ONE


def test_run_page_shows_the_staleness_of_an_asynchronous_run(viewer: Viewer) -> None:
    metrics = viewer.root / HOSTILE / "metrics.jsonl"
    before = metrics.read_bytes()
    others = ("success", "reward", "turns", "tokens", "entropy", "dropped")
    row = {"step": 1, **{f"rollout/{name}": 0.5 for name in others}, "rollout/staleness": 1.25}
    try:
        metrics.write_bytes(json.dumps(row).encode() + b"\n")
        viewer.open("run", run=HOSTILE)
        panel = viewer.page.locator('.panel[data-metric="rollout/staleness"]')
        expect(panel).to_contain_text("Staleness in steps")
        expect(panel.locator(".last")).to_have_text("1.25")
    finally:
        metrics.write_bytes(before)


def test_run_page_without_results_or_valid_settings(viewer: Viewer) -> None:
    viewer.open("run", run=HOSTILE)
    expect(viewer.page.locator(".run-facts")).to_contain_text("stopped")
    expect(viewer.page.locator(".differences > .scroll tbody")).to_contain_text("<script>window.ran=1</script>")
    config = viewer.root / HOSTILE / "config.toml"
    text = config.read_text()
    try:
        config.write_text("seed = \n")
        viewer.open("runs")
        viewer.open("run", run=HOSTILE)
        expect(viewer.page.locator(".differences [role=alert]")).to_contain_text("config.toml is not valid TOML")
        expect(viewer.page.locator(".run-facts")).to_contain_text("stopped")
    finally:
        config.write_text(text)
    viewer.problems.clear()  # the browser reports the status 400 itself


def test_environment_paths_are_shown_by_their_last_part(viewer: Viewer) -> None:
    viewer.open("runs")
    script = "async (name) => (await import('/static/format.js')).environmentText(name)"
    shown = {"/home/me/coin.py:Coin": "coin.py:Coin", "frozen_lake": "frozen_lake", "gym/Taxi": "gym/Taxi"}
    assert {name: viewer.page.evaluate(script, name) for name in shown} == shown


def test_run_page_explains_the_run_and_shows_a_task_before_and_after(viewer: Viewer) -> None:
    viewer.open("run", run=OTHER)
    expect(viewer.page.locator(".run-words")).to_contain_text("What happened")
    gained, lost = len(set(GAINED) - set(LOST)), len(set(LOST) - set(GAINED))
    expect(viewer.page.locator(".run-words")).to_contain_text(
        f"{gained} are solved now that were not before, and {lost} no"
    )
    viewer.page.get_by_text("See a task before and after training").click()
    expect(viewer.page.locator(".run-words .column-head a")).to_have_text(["Before training", "After training"])
    expect(viewer.page.locator(".run-words p .state")).to_contain_text("solved now")
    expect(viewer.page.get_by_role("heading", name="Alarm", exact=True)).to_be_visible()
    expect(viewer.page.locator(".alarm-list")).to_contain_text("entropy fell to <b>half</b>")


def test_run_page_left_early_logs_no_error(viewer: Viewer) -> None:
    """Requests that are aborted on the way are not errors. The fixture asserts that none is logged."""
    viewer.open("runs")
    for _ in range(5):
        viewer.page.evaluate(f"location.hash = '#/run?run={OTHER}'")
        viewer.page.wait_for_timeout(15)
        viewer.page.evaluate("location.hash = '#/runs'")
    expect(viewer.page.locator(NAMES)).to_have_count(5)
