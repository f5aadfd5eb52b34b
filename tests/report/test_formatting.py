import pytest

from turnwise.report.formatting import (
    format_count,
    format_decimal,
    format_duration,
    format_interval,
    format_p_value,
    format_percent,
)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.0, "0.0 %"), (0.8203, "82.0 %"), (1.0, "100.0 %"), (float("nan"), "-")]
)
def test_format_percent(value: float | None, text: str) -> None:
    assert format_percent(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0, "0.000"), (0.0012, "0.001"), (-0.00012, "-1.2e-04"), (12.5, "12.500")]
)
def test_format_decimal(value: float | None, text: str) -> None:
    assert format_decimal(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (950, "950"), (9999, "9999"), (12_400, "12.4k"), (3_100_000, "3.1M"), (2e9, "2.0G")],
)
def test_format_count(value: float | None, text: str) -> None:
    assert format_count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0, "0:00"), (41.4, "0:41"), (59.6, "1:00"), (725, "12:05"), (3753, "1:02:33")]
)
def test_format_duration(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("ends", "text"), [(None, "-"), ([None, None], "-"), ((0.5, 1.0), "50.0 to 100.0 %")])
def test_format_interval(ends: list[float | None] | None, text: str) -> None:
    assert format_interval(ends) == text


@pytest.mark.parametrize(("p", "text"), [(1.0, "1.0000"), (0.05, "0.0500"), (0.00009, "< 0.0001")])
def test_format_p_value(p: float, text: str) -> None:
    assert format_p_value(p) == text
