import pytest

from turnwise.report.formatting import format_count, format_decimal, format_duration, format_percent
from turnwise.report.terminal import draw_sparkline


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.0, "0.0 %"), (0.8203, "82.0 %"), (1.0, "100.0 %"), (float("nan"), "-")]
)
def test_percent(value: float | None, text: str) -> None:
    assert format_percent(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0, "0.000"), (0.0012, "0.001"), (-0.00012, "-1.2e-04"), (12.5, "12.500")]
)
def test_decimal(value: float | None, text: str) -> None:
    assert format_decimal(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (950, "950"), (9999, "9999"), (12_400, "12.4k"), (3_100_000, "3.1M"), (2e9, "2.0G")],
)
def test_count(value: float | None, text: str) -> None:
    assert format_count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0, "0:00"), (41.4, "0:41"), (59.6, "1:00"), (725, "12:05"), (3753, "1:02:33")]
)
def test_duration(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text


def test_sparkline_spans_0_to_1_without_stretching() -> None:
    assert draw_sparkline([0.0, 0.5, 1.0], 10) == "▁▅█"
    assert draw_sparkline([0.5, 0.51], 10) == "▅▅"
    assert draw_sparkline([], 10) == ""


def test_sparkline_averages_what_does_not_fit() -> None:
    assert draw_sparkline([0.0, 1.0] * 10, 10) == "▅" * 10
    assert len(draw_sparkline([0.3] * 1001, 48)) == 48
