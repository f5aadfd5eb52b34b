import io
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from turnwise.report.terminal import (
    BRAILLE,
    draw_ascii_plot,
    draw_braille_plot,
    draw_sparkline,
    print_command,
    sanitize_line,
)


def test_print_command_keeps_a_long_command_on_one_line() -> None:
    console = Console(file=io.StringIO(), width=20)
    print_command(console, "next:", "turnwise eval 'runs/[red] lake' --episodes 512")
    assert console.file.getvalue() == "next: turnwise eval 'runs/[red] lake' --episodes 512\n"


def test_sanitize_line_keeps_letters_of_every_language() -> None:
    assert sanitize_line("naïve 雪\tü\x07").plain == "naïve 雪 ü "


def test_sparkline_is_not_rescaled() -> None:
    assert draw_sparkline([0.0, 0.5, 1.0], 10) == "▁▅█"
    assert draw_sparkline([0.5, 0.51], 10) == "▅▅"
    assert draw_sparkline([], 10) == ""


def test_sparkline_averages_to_its_width() -> None:
    assert draw_sparkline([0.0, 1.0] * 10, 10) == "▅" * 10
    assert len(draw_sparkline([0.3] * 1001, 48)) == 48


def test_plots_rise_from_lower_left_to_upper_right() -> None:
    lines = draw_ascii_plot([(0, 0.0), (1, 1.0)], width=5, height=5, low=0, high=1)
    assert [line.index("*") for line in lines] == [4, 3, 2, 1, 0]
    assert draw_ascii_plot([(0, 0.0), (1, 1.0)], width=2, height=4, low=0, high=1) == [
        " *",
        " *",
        " *",
        "* ",
    ]  # no hole
    dots = draw_braille_plot([(0, 0.0), (1, 1.0)], width=4, height=2, low=0, high=1)
    assert dots == ["⠀⠀⡠⠊", "⡠⠊⠀⠀"]


@given(
    points=st.lists(st.tuples(st.integers(0, 10**6), st.floats(-1e99, 1e99)), min_size=1, max_size=60),
    width=st.integers(1, 40),
    height=st.integers(1, 8),
)
def test_braille_plot_is_a_connected_line(points: Any, width: int, height: int) -> None:
    values = [value for _, value in points]
    lines = draw_braille_plot(sorted(points), width, height, min(values), max(values))
    assert [len(line) for line in lines] == [width] * height
    for column in range(width):
        assert any(ord(line[column]) != BRAILLE for line in lines)
