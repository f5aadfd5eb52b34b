import re
import xml.etree.ElementTree as ElementTree

import pytest

from turnwise.record.catalogue import Metric
from turnwise.record.rows import Record, read_records
from turnwise.report.learning_curve import draw_learning_curve
from turnwise.report.metric_charts import choose_levels, draw_metric_chart, thin_points, value_range
from turnwise.report.success_chart import SuccessBar, draw_success_chart
from turnwise.report.svg import nice_ticks, rolling_mean

SVG = "{http://www.w3.org/2000/svg}"


def records() -> list[Record]:
    train = [{"step": step, "time/total_s": 3.0, "rollout/success": step / 40} for step in range(41)]
    evaluations = [
        {"step": step, "time/total_s": 99.0, "eval/success": rate, "eval/success_low": low, "eval/success_high": high}
        for step, rate, low, high in [(0, 0.25, 0.2, 0.3), (20, 0.5, 0.45, 0.55), (40, 0.9, 0.85, 0.95)]
    ]
    return read_records([*train, *evaluations, {"step": 41, "time/total_s": 3.0, "rollout/success": None}])


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def points(root: ElementTree.Element) -> list[list[tuple[float, float]]]:
    lines = [line.attrib["points"].split() for line in root.iter(f"{SVG}polyline")]
    return [[tuple(map(float, point.split(","))) for point in line] for line in lines]


def test_learning_curve_spans_its_frame() -> None:
    raw, smooth = points(parsed(draw_learning_curve(records(), "frozen_lake")))
    assert len(raw) == len(smooth) == 41  # the step without a number is left out
    assert raw[0] == (64.0, 328.0)  # step 0, 0 %
    assert raw[-1] == (696.0, 64.0)  # the last step, 100 %
    assert smooth[-1][1] > raw[-1][1]  # SVG's y points down: a rolling mean lags behind a rise


def test_learning_curve_draws_evaluations_with_intervals() -> None:
    root = parsed(draw_learning_curve(records(), "t"))
    bars = [line.attrib for line in root.iter(f"{SVG}line") if line.attrib["stroke-width"] == "2"]
    spines = [bar for bar in bars if bar["x1"] == bar["x2"]]
    # 264 pixels are 100 %, counted from 328 upwards
    assert [(float(bar["y1"]), float(bar["y2"])) for bar in spines] == [
        (pytest.approx(328 - 264 * low, abs=0.1), pytest.approx(328 - 264 * high, abs=0.1))
        for low, high in [(0.2, 0.3), (0.45, 0.55), (0.85, 0.95)]
    ]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "25.0 %" in texts
    assert "90.0 %" in texts
    assert "50.0 %" not in texts


def test_learning_curve_labels_its_axes() -> None:
    texts = {text.text for text in parsed(draw_learning_curve(records(), "t")).iter(f"{SVG}text")}
    assert {"training step", "success", "40", "100 %"} <= texts


@pytest.mark.parametrize("data", [[], [{"step": 0, "rollout/success": 0.5}], [{"step": 3, "loss": 1.0}]])
def test_learning_curve_accepts_few_or_no_rows(data: list[dict[str, float]]) -> None:
    assert parsed(draw_learning_curve(read_records(data), "t")).tag == f"{SVG}svg"


def test_learning_curve_escapes_its_title() -> None:
    title = '</text><script>alert("x")</script>&\x00'
    root = parsed(draw_learning_curve(records(), title))
    assert not list(root.iter(f"{SVG}script"))
    assert root.attrib["aria-label"] == title.replace("\x00", " ")


def test_learning_curve_is_deterministic() -> None:
    assert draw_learning_curve(records(), "t") == draw_learning_curve(records(), "t")


@pytest.mark.parametrize(
    ("right", "ticks"),
    [(40, [0, 5, 10, 15, 20, 25, 30, 35, 40]), (119, [0, 20, 40, 60, 80, 100]), (1, [0, 0.2, 0.4, 0.6, 0.8, 1.0])],
)
def test_nice_ticks_are_round_numbers(right: float, ticks: list[float]) -> None:
    assert nice_ticks(right) == pytest.approx(ticks)


def test_rolling_mean_uses_past_values_only() -> None:
    assert rolling_mean([1.0, 3.0, 5.0], window=2) == [1.0, 2.0, 4.0]


def circles(svg: str) -> list[dict[str, str]]:
    return [each.attrib for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("circle")]


def test_success_chart_draws_a_point_and_an_interval_per_model() -> None:
    bars = [
        SuccessBar(label="a", success=0.0, low=0.0, high=0.2),
        SuccessBar(label="b" * 60, success=1.0, low=0.8, high=1.0),
    ]
    svg = draw_success_chart(bars, 'sokoban "&<\x00')
    legend, first, second = circles(svg)
    assert float(first["cx"]) < float(second["cx"])
    assert float(first["cy"]) < float(second["cy"])
    assert "..." + "b" * 25 in svg
    assert "pass@" not in svg
    assert float(legend["cy"]) < float(first["cy"])


def test_success_chart_draws_pass_at_k_as_a_ring() -> None:
    svg = draw_success_chart([SuccessBar(label="a", success=0.5, low=0.4, high=0.6, pass_at_k=0.75)], "t", tries=4)
    point, ring = circles(svg)[2:]
    assert float(point["cx"]) < float(ring["cx"])
    assert "pass@4" in svg


def test_metric_chart_follows_its_values_and_marks_alarms() -> None:
    entropy = Metric(name="train/entropy", label="entropy", meaning="")
    svg = draw_metric_chart([(step, step / 10) for step in range(1, 11)], entropy, marks=[5, 99])
    raw, _ = re.findall(r'points="([^"]*)"', svg)
    heights = [float(place.split(",")[1]) for place in raw.split()]
    assert heights == sorted(heights, reverse=True)  # SVG's y points down
    assert svg.count("h-10z") == 1  # the other is outside the range
    assert "1.0" in svg


def test_thin_points_keeps_spikes() -> None:
    points = [(float(step), 100.0 if step == 7777 else 0.0) for step in range(20_000)]
    kept = thin_points(points, 100)
    assert len(kept) <= 200
    assert max(kept, key=lambda point: point[1]) == (7777.0, 100.0)
    assert kept == sorted(kept)


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [1e16, 1e16], [-1e99, 1e99], [1e-300], [-3.0, 4.0], [0.1, 0.2]])
def test_value_range_and_levels_cover_values_of_any_size(values: list[float]) -> None:
    low, high = value_range(values)
    assert low < high and low <= min(values) <= max(values) <= high
    assert low >= 0 or min(values) < 0
    levels = choose_levels(low, high)
    assert len(levels) <= 10
    assert all(low - 1e-9 * abs(low) <= level <= high + 1e-9 * abs(high) for level in levels)
