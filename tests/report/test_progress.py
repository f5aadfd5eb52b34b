import io
import math
import sys
import threading

import pytest
from rich.console import Console

from turnwise.report.progress import Progress
from turnwise.report.terminal import make_console, sanitize_line

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def console(*, terminal: bool, encoding: str = "utf-8") -> tuple[Console, io.TextIOWrapper]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    return Console(file=file, force_terminal=terminal, width=100, highlight=False), file


def written(file: io.TextIOWrapper) -> str:
    file.flush()
    return file.buffer.getvalue().decode(file.encoding)


def metrics(success: float) -> dict[str, float]:
    return {
        "rollout/success": success,
        "rollout/reward": 0.25,
        "rollout/response_tokens": 38.25,
        "train/entropy": 0.5,
        "train/kl": 0.00012,
        "time/tokens_per_s": 12_400.0,
    }


def test_plain_lines_are_aligned_and_say_what_a_person_wants() -> None:
    out, file = console(terminal=False)
    clock = Clock()
    with Progress(120, out, clock=clock) as progress:
        for step in range(3):
            clock.now += 5
            progress.step(step, metrics(step / 2))
    lines = written(file).splitlines()
    assert lines[1] == (
        "step   2/120  success  50.0 %  reward   0.250  response   38.2  entropy   0.500"
        "  KL  1.2e-04  tokens/s  12.4k  left    9:50"
    )
    assert len(lines) == 3
    assert len({len(line) for line in lines}) == 1
    assert "\x1b" not in written(file)


def test_plain_lines_come_at_most_every_two_seconds_and_the_last_step_always() -> None:
    out, file = console(terminal=False)
    clock = Clock()
    with Progress(100, out, clock=clock) as progress:
        for step in range(100):
            clock.now += 0.1
            progress.step(step, metrics(0.5))
    lines = written(file).splitlines()
    assert 5 <= len(lines) <= 6
    assert lines[-1].startswith("step 100/100")
    assert sum("100/100" in line for line in lines) == 1


def test_a_run_that_ends_early_still_shows_its_last_step() -> None:
    out, file = console(terminal=False)
    clock = Clock()
    with pytest.raises(KeyboardInterrupt), Progress(100, out, clock=clock) as progress:
        clock.now += 3
        progress.step(0, metrics(0.1))
        clock.now += 0.1
        progress.step(1, metrics(0.2))
        raise KeyboardInterrupt
    assert [line[:10] for line in written(file).splitlines()] == ["step   1/1", "step   2/1"]


def test_a_long_step_shows_its_phase_now_and_then() -> None:
    out, file = console(terminal=False)
    clock = Clock()
    with Progress(10, out, clock=clock) as progress:
        for done in range(70):
            clock.now += 1
            progress.phase("rollout", done, 256)
    assert written(file).splitlines() == ["step  0/10  rollout 29/256", "step  0/10  rollout 59/256"]


def test_time_left_follows_the_pace_and_the_limit() -> None:
    out, file = console(terminal=False)
    clock = Clock()
    with Progress(10, out, clock=clock, limit_s=40) as progress:
        clock.now += 100  # loading and evaluating says nothing of the pace
        progress.begin(4)
        clock.now += 6
        progress.step(4, metrics(0.1))
        clock.now += 12
        progress.step(5, metrics(0.1))
    lines = written(file).splitlines()
    assert lines[0].startswith("step  5/10")
    assert lines[0].endswith("left    0:30")  # five steps of 6 s
    assert lines[1].endswith("left    0:22")  # four of 9 s, but 22 until the limit


def test_a_resumed_run_that_stops_at_once_prints_no_step() -> None:
    out, file = console(terminal=False)
    with Progress(10, out) as progress:
        progress.begin(4)
    assert written(file) == ""


@pytest.mark.parametrize("terminal", [False, True])
def test_the_kl_to_the_sampling_policy_is_called_what_it_is(terminal: bool) -> None:
    """Shown only where there is no reference to have a KL to."""
    for given, label, other in (({}, "step KL", "-3.4e-04"), ({"train/kl": 0.25}, "KL", "0.250")):
        out, file = console(terminal=terminal)
        with Progress(1, out) as progress:
            progress.step(0, {"train/approx_kl": -0.00034, **given})
        assert label in written(file) and other in written(file)
        assert ("step KL" in written(file)) == (label == "step KL")


def test_missing_and_nonfinite_numbers_do_not_end_a_run() -> None:
    for terminal in (False, True):
        out, file = console(terminal=terminal)
        with Progress(2, out, clock=Clock()) as progress:
            progress.step(0, {})
            progress.step(1, dict.fromkeys(metrics(0.5), math.nan))
        assert "nan" in written(file)


def test_on_a_terminal_the_view_is_redrawn_and_throttled() -> None:
    out, file = console(terminal=True)
    clock = Clock()
    with Progress(100, out, title="frozen_lake", clock=clock) as progress:
        for step in range(40):
            clock.now += 1
            progress.step(step, metrics(step / 40))
        before = len(written(file))
        for done in range(1000):
            progress.phase("rollout", done, 1000)
        assert len(written(file)) == before  # no time has passed
        clock.now += 1
        progress.phase("rollout", 128, 256)
        text = written(file)[before:]
    for part in ("frozen_lake", "40/100", "rollout 128/256", "97.5 %", "12.4k", "0:59 left", "▁", "█"):
        assert part in text


def test_after_an_exception_the_terminal_is_as_before_and_nothing_is_printed_later() -> None:
    for error in (KeyboardInterrupt, ValueError):
        out, file = console(terminal=True)
        threads, stdout = threading.active_count(), sys.stdout
        with pytest.raises(error), Progress(10, out) as progress:
            assert written(file).count(HIDE_CURSOR) == 1
            assert threading.active_count() == threads
            progress.step(0, metrics(0.5))
            raise error
        text = written(file)
        assert text.rindex(SHOW_CURSOR) > text.rindex(HIDE_CURSOR)
        assert sys.stdout is stdout


def test_a_note_is_one_plain_line_whatever_it_holds() -> None:
    for terminal in (False, True):
        out, file = console(terminal=terminal)
        with Progress(10, out) as progress:
            progress.note("warning [bold]not markup[/bold]\x1b[2J and\nmore " + "x" * 150)
        assert "warning [bold]not markup[/bold] [2J and more " in written(file)
        assert "\x1b[2J" not in written(file)


def test_a_terminal_without_unicode_gets_a_view_that_it_can_show() -> None:
    out, file = console(terminal=True, encoding="ascii")
    clock = Clock()
    with Progress(10, out, clock=clock) as progress:
        clock.now += 1
        progress.step(0, metrics(0.5))
    assert "50.0 %" in written(file)


def test_one_line_keeps_letters_of_every_language() -> None:
    assert sanitize_line("naïve 雪\tü\x07").plain == "naïve 雪 ü "


def test_a_pipe_never_gets_motion_even_with_forced_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", file)
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = make_console()
    with Progress(10, out) as progress:
        progress.note("snow 雪")
    assert "snow ?" in written(file)
    assert HIDE_CURSOR not in written(file)
