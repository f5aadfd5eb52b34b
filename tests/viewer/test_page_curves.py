"""The curves view in a real browser."""

import csv
import io
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
from browser_for_tests import CRITIC_METRICS, ONE, OTHER, STEPS, TWO, Viewer

from opened_page_for_tests import expect
from turnwise.files.disk import FolderLock

if TYPE_CHECKING:
    from playwright.sync_api import Locator

REWARD = '.panel[data-metric="rollout/reward"]'
ENTROPY = '.panel[data-metric="train/entropy"]'
SUCCESS = '.panel[data-metric="rollout/success"]'
HURRY = 40
"""How many times as often the page asks for news, which it does every two seconds."""
HURRY_UP = "(hurry) => { window.realTimeout = setTimeout; setTimeout = (call, ms) => realTimeout(call, ms / hurry); }"


def stored(viewer: Viewer, run: str, metric: str) -> dict[int, float]:
    return {each["step"]: each[metric] for each in viewer.metrics(run) if metric in each}


def spot(area: "Locator", step: float, last: int = STEPS) -> tuple[float, float]:
    """Return the position of a step on a panel that shows all steps."""
    box = area.bounding_box()
    assert box is not None
    return box["x"] + 46 + (box["width"] - 56) * step / last, box["y"] + 60


def short(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")


def test_curves_overlay_runs_and_share_a_cursor(viewer: Viewer) -> None:
    viewer.open("curves", run=[ONE, TWO])
    viewer.page.mouse.move(*spot(viewer.page.locator(f"{REWARD} .area"), 3))
    for panel, metric in ((REWARD, "rollout/reward"), (ENTROPY, "train/entropy")):
        expect(viewer.page.locator(f"{panel} .readout .at")).to_have_text("step 3")
        expected = [short(stored(viewer, run, metric)[3]) for run in (ONE, TWO)]
        expect(viewer.page.locator(f"{panel} .readout b")).to_have_text(expected)
    looks = "lines => lines.map((line) => line.getAttribute('stroke') + line.getAttribute('stroke-dasharray'))"
    assert len(set(viewer.page.locator(".legend .swatch line").evaluate_all(looks))) == 2


def test_arrow_keys_move_the_cursor(viewer: Viewer) -> None:
    viewer.open("curves", run=ONE)
    viewer.page.locator(f"{ENTROPY} .area").focus()
    for _ in range(3):
        viewer.page.keyboard.press("ArrowRight")
    at = int(viewer.page.locator(f"{REWARD} .readout .at").inner_text().removeprefix("step "))
    assert at in (2, 3)
    expect(viewer.page.locator(f"{REWARD} .readout b").first).to_have_text(
        short(stored(viewer, ONE, "rollout/reward")[at])
    )


def test_dragging_zooms_and_double_click_resets(viewer: Viewer) -> None:
    viewer.open("curves", run=ONE)
    area = viewer.page.locator(f"{REWARD} .area")
    viewer.page.mouse.move(*spot(area, 1))
    viewer.page.mouse.down()
    viewer.page.mouse.move(*spot(area, 2))
    viewer.page.mouse.move(*spot(area, 3))
    viewer.page.mouse.up()
    viewer.page.wait_for_url("**from=1**")
    assert (viewer.entries()["from"], viewer.entries()["to"]) == ("1", "3")
    viewer.page.mouse.move(*spot(viewer.page.locator(f"{ENTROPY} .area"), STEPS))
    expect(viewer.page.locator(f"{REWARD} .readout .at")).to_have_text("step 3")  # the right end is now step 3
    area.dblclick()
    viewer.page.wait_for_function("!location.hash.includes('from=')")
    assert "from" not in viewer.entries()
    expect(viewer.page.get_by_role("button", name="Reset zoom")).to_be_disabled()


def test_success_is_shown_in_percent_over_steps(viewer: Viewer) -> None:
    viewer.open("curves", run=ONE)
    last = stored(viewer, ONE, "rollout/success")[STEPS]
    expect(viewer.page.locator(f"{SUCCESS} .last")).to_have_text(f"{100 * last:.1f} %")
    viewer.page.mouse.move(*spot(viewer.page.locator(f"{SUCCESS} .area"), STEPS))
    expect(viewer.page.locator(f"{SUCCESS} .readout b").first).to_have_text(f"{100 * last:.1f} %")
    svg = ElementTree.fromstring(viewer.saved(f"{SUCCESS} button:has-text('SVG')"))
    texts = [each.text for each in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"0 %", "100 %", "step"} <= set(texts)
    expect(viewer.page.locator(f"{REWARD} .last")).to_have_text(short(stored(viewer, ONE, "rollout/reward")[STEPS]))


def test_critic_of_utterances_has_main_panels(viewer: Viewer) -> None:
    viewer.open("curves", run=OTHER)
    for metric, value in CRITIC_METRICS.items():
        shown = "75.0 %" if metric == "train/effective_samples" else short(value)
        expect(viewer.page.locator(f'.panel[data-metric="{metric}"]:visible .last')).to_have_text(shown)


def test_csv_contains_stored_numbers_and_evaluations(viewer: Viewer) -> None:
    viewer.open("curves", run=[ONE, TWO], smooth=0.9)
    viewer.page.locator(f"{SUCCESS}").hover()
    rows = list(csv.DictReader(io.StringIO(viewer.saved(f"{SUCCESS} button:has-text('CSV')").decode())))
    for run in (ONE, TWO):
        for metric in ("rollout/success", "eval/success", "eval/success_low", "eval/success_high"):
            saved = [
                (int(each["step"]), float(each["value"]))
                for each in rows
                if (each["run"], each["metric"]) == (run, metric)
            ]
            kept = [(each["step"], each[metric]) for each in viewer.metrics(run) if metric in each]
            assert saved == kept and kept


def test_saved_pictures_contain_curves_and_legend(viewer: Viewer) -> None:
    viewer.open("curves", run=[ONE, TWO])
    svg = ElementTree.fromstring(viewer.saved(f"{REWARD} button:has-text('SVG')"))
    name = "{http://www.w3.org/2000/svg}"
    texts = [each.text for each in svg.iter(f"{name}text")]
    assert {"Reward", ONE, TWO} <= set(texts)
    dashes = {each.get("stroke-dasharray") for each in svg.iter(f"{name}path") if each.get("stroke-width") == "1.6"}
    assert len(dashes) == 2
    png = viewer.saved(f"{REWARD} button:has-text('PNG')")
    assert png.startswith(b"\x89PNG") and int.from_bytes(png[16:20], "big") == 1440


def test_seeds_option_draws_mean_and_range(viewer: Viewer) -> None:
    viewer.open("curves", run=[ONE, TWO, OTHER])
    viewer.page.get_by_label("Mean and range over seeds").check()
    viewer.page.mouse.move(*spot(viewer.page.locator(f"{ENTROPY} .area"), 2))
    one, two, other = (stored(viewer, run, "train/entropy")[2] for run in (ONE, TWO, OTHER))
    mean = f"{short((one + two) / 2)} ({short(min(one, two))} to {short(max(one, two))})"
    expect(viewer.page.locator(f"{ENTROPY} .readout b")).to_have_text([mean, short(other)])


def test_smoothing_and_log_scale_are_in_the_address(viewer: Viewer) -> None:
    viewer.open("curves", run=ONE)
    plain = viewer.saved(f"{ENTROPY} button:has-text('SVG')")
    viewer.page.locator("#smoothing").fill("0.8")
    viewer.page.get_by_label("Log scale").check()
    assert (viewer.entries()["smooth"], viewer.entries()["log"]) == ("0.8", "1")
    changed = viewer.saved(f"{ENTROPY} button:has-text('SVG')")
    assert b'stroke-opacity="0.28"' in changed and b'stroke-opacity="0.28"' not in plain


def test_alarm_marks_show_their_text_on_hover_and_focus(viewer: Viewer) -> None:
    viewer.open("curves", run=ONE)
    mark = viewer.page.locator(f"{ENTROPY} .alarm")
    expect(mark).to_have_count(1)
    for show in (mark.hover, mark.focus):
        show()
        expect(viewer.page.get_by_role("tooltip")).to_have_text("step 2 entropy fell to <b>half</b>")
        viewer.page.mouse.move(5, 5)
    assert viewer.page.locator(f"{REWARD} .alarm").count() == 1


def test_other_metrics_are_folded_and_found_by_filter(viewer: Viewer) -> None:
    viewer.open("curves", run=ONE)
    assert viewer.page.locator('.panel[data-metric="train/ratio"]').count() == 0
    viewer.page.locator("#filter").fill("ratio")
    expect(viewer.page.locator('.panel[data-metric="train/ratio"]')).to_be_visible()
    expect(viewer.page.locator(REWARD)).to_have_count(0)
    viewer.page.locator("#filter").fill("")
    viewer.page.locator("summary", has_text="rollout").click()
    expect(viewer.page.locator('.panel[data-metric="rollout/turns"]')).to_be_visible()


def stops_asking(viewer: Viewer) -> bool:
    """Return whether there comes a time without requests that is long enough for ten of them."""
    for _ in range(60):
        asked = len(viewer.requests)
        viewer.page.wait_for_timeout(10 * 2000 / HURRY)
        if len(viewer.requests) == asked:
            return True
    return False


def test_running_run_updates_except_in_a_hidden_tab(viewer: Viewer, tmp_path: Path) -> None:
    path = viewer.root / "live"
    path.mkdir()
    (path / "config.toml").write_text('[env]\nkind = "bandit"\n[train]\nsteps = 9\n')

    def add(step: int) -> None:
        with (path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "rollout/reward": step / 8}) + "\n")

    add(1)
    lock = FolderLock(path)
    try:
        viewer.open("runs")
        viewer.page.evaluate(HURRY_UP, HURRY)
        viewer.open("curves", run="live")
        expect(viewer.page.locator("#live")).to_have_text("live")
        add(2)
        expect(viewer.page.locator(f"{REWARD} .last")).to_have_text("0.25")
        viewer.page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
        viewer.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        add(3)
        assert stops_asking(viewer)
        viewer.page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        expect(viewer.page.locator(f"{REWARD} .last")).to_have_text("0.375")
        (path / "metrics.jsonl").write_text('{"step":1,"rollout/reward":0.5}\n')  # resumed from an earlier step
        expect(viewer.page.locator(f"{REWARD} .last")).to_have_text("0.5")
        saved = viewer.saved(f"{REWARD} button:has-text('CSV')").decode().splitlines()
        assert saved[1:] == ["live,rollout/reward,1,0.5"]
    finally:
        viewer.page.evaluate("void (setTimeout = realTimeout)")
        viewer.open("runs")  # asks for this run no longer
        lock.release()
        for file in path.iterdir():
            file.unlink()
        path.rmdir()


def evaluate(viewer: Viewer, module: str, code: str, *arguments: Any) -> Any:
    script = f"async (args) => {{ const m = await import('/static/{module}.js'); return ({code})(m, ...args); }}"
    return viewer.page.evaluate(script, list(arguments))


def test_thin_keeps_extremes_and_order(viewer: Viewer) -> None:
    viewer.open("runs")
    rng = random.Random(5)
    values = [rng.gauss(0, 1) for _ in range(10_000)]
    kept = evaluate(viewer, "series", "(m, y) => m.thin({x: y.map((_, i) => i), y}, 0, 9999, 300)", values)
    assert kept == sorted(set(kept)) and len(kept) <= 4 * 302
    buckets: dict[int, list[int]] = {}
    for place in range(10_000):
        buckets.setdefault(int(place / (9999 / 300)), []).append(place)
    for bucket in buckets.values():
        drawn, all_of_it = ([values[place] for place in places] for places in (set(kept) & set(bucket), bucket))
        assert (min(drawn), max(drawn)) == (min(all_of_it), max(all_of_it))


def test_smooth_is_an_unbiased_moving_average(viewer: Viewer) -> None:
    viewer.open("runs")
    smooth = "(m, y, weight) => m.smooth({x: y.map((_, i) => i), y}, weight).y"
    assert evaluate(viewer, "series", smooth, [3, 3, 3], 0.9) == pytest.approx([3, 3, 3])
    assert evaluate(viewer, "series", smooth, [0, 1], 0.5) == pytest.approx([0, 2 / 3])
    assert evaluate(viewer, "series", smooth, [0, 1], 0) == [0, 1]


@pytest.mark.parametrize(
    ("low", "high", "share", "axis"),
    [
        (0, 0, True, [0, 0.1]),
        (0, 0, False, [0, 1]),
        (1, 1, True, [0.9, 1]),
        (0, 1, False, [0, 1.06]),
        (-2, -2, False, [-2.2, -1.8]),
    ],
)
def test_axis_leaves_the_range_of_values_only_if_they_do(
    viewer: Viewer, low: float, high: float, share: bool, axis: list[float]
) -> None:
    viewer.open("runs")
    padded = """(m, low, high, share) => m.padded(low, high, {unit: share ? "share" : ""})"""
    assert evaluate(viewer, "scale", padded, low, high, share) == pytest.approx(axis)
