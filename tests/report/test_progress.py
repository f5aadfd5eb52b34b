import io
import math
import sys
import threading
from typing import Any

import pytest
from rich.console import Console

from turnwise.record.rows import read_records, select
from turnwise.record.steps import EpisodeSource, IdleReason, StepRecord
from turnwise.report.progress import EXPLANATIONS, Progress
from turnwise.report.terminal import make_console

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"

ROLLED = {"rollout/sampled_tokens": 40.0, "rollout/kept_groups": 4.0}


class Clock:
    """A clock that the test sets."""

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


def record_of(done: int, row: dict[str, Any], idle: IdleReason | None = None) -> StepRecord:
    """Return the record of the step after `done` steps."""
    numbers = {name: value for name, value in row.items() if not isinstance(value, str)}
    source = EpisodeSource.DEMONSTRATIONS if "train/loss" in row else EpisodeSource.PLAYED
    return StepRecord.of(done + 1, source, numbers, idle=idle, dropped_reason=row.get("rollout/dropped_reason"))


def test_progress_lines_are_aligned() -> None:
    out, file = console(terminal=False)
    clock = Clock()
    with Progress(120, out, clock=clock) as progress:
        for step in range(3):
            clock.now += 5
            progress.step(record_of(step, metrics(step / 2)))
    lines = written(file).splitlines()
    assert lines[1] == (
        "step   2/120  success  50.0 %  reward   0.250  response   38.2  entropy   0.500"
        "  KL  1.2e-04  tokens/s  12.4k  left    9:50"
    )
    assert len(lines) == 3
    assert len({len(line) for line in lines}) == 1
    assert "\x1b" not in written(file)


def test_progress_shows_dropped_episodes_and_explains_the_first() -> None:
    out, file = console(terminal=False)
    clock = Clock()
    counts = [{"rollout/dropped": count, "rollout/episodes": 64.0 - count} for count in (0.0, 8.0, 3.0)]
    reason = {"rollout/dropped_reason": "the environment's step raised KeyError: 'x' at my_env.py:12"}
    with Progress(3, out, clock=clock) as progress:
        for step, count in enumerate(counts):
            clock.now += 5
            progress.step(record_of(step, {**metrics(0.5), **count, **(reason if count["rollout/dropped"] else {})}))
    first, note, second, third = written(file).splitlines()
    assert "dropped" not in first
    assert note == (
        "step 2 dropped 8 of 64 episodes. Last failure: the environment's step raised KeyError: 'x' at my_env.py:12"
    )
    assert "tokens/s  12.4k  dropped   8  left" in second and "dropped   3" in third


def test_progress_without_a_known_total_counts_steps_only() -> None:
    out, file = console(terminal=False)
    clock = Clock()
    with Progress(None, out, clock=clock) as progress:
        for step in range(3):
            clock.now += 60
            progress.step(record_of(step, metrics(0.5)))
    lines = written(file).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 1", "step 2", "step 3"]
    assert "left" not in written(file) and "/" not in written(file).replace("tokens/s", "")


def test_progress_lines_are_throttled_but_end_with_the_last_step() -> None:
    out, file = console(terminal=False)
    clock = Clock()
    with Progress(100, out, clock=clock) as progress:
        for step in range(100):
            clock.now += 0.1
            progress.step(record_of(step, metrics(0.5)))
    lines = written(file).splitlines()
    assert 5 <= len(lines) <= 6
    assert lines[-1].startswith("step 100/100")
    assert sum("100/100" in line for line in lines) == 1


def test_progress_prints_the_last_step_of_an_interrupted_run() -> None:
    out, file = console(terminal=False)
    clock = Clock()
    with pytest.raises(KeyboardInterrupt), Progress(100, out, clock=clock) as progress:
        clock.now += 3
        progress.step(record_of(0, metrics(0.1)))
        clock.now += 0.1
        progress.step(record_of(1, metrics(0.2)))
        raise KeyboardInterrupt
    assert [line[:10] for line in written(file).splitlines()] == ["step   1/1", "step   2/1"]


def test_progress_prints_the_phase_of_a_long_step() -> None:
    out, file = console(terminal=False)
    clock = Clock()
    with Progress(10, out, clock=clock) as progress:
        progress.begin(0)
        for done in range(70):
            clock.now += 1
            progress.phase("rollout", done, 256)
    assert written(file).splitlines() == ["step  0/10  rollout 29/256", "step  0/10  rollout 59/256"]


def test_progress_estimates_the_time_left_within_the_limit() -> None:
    out, file = console(terminal=False)
    clock = Clock()
    with Progress(10, out, clock=clock, limit_s=40) as progress:
        clock.now += 100  # loading and the first evaluation do not count
        progress.begin(4)
        clock.now += 6
        progress.step(record_of(4, metrics(0.1)))
        clock.now += 12
        progress.step(record_of(5, metrics(0.1)))
    lines = written(file).splitlines()
    assert lines[0].startswith("step  5/10")
    assert lines[0].endswith("left    0:30")  # five steps of 6 s
    assert lines[1].endswith("left    0:22")  # four of 9 s, but 22 until the limit


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_shows_the_cost_so_far(terminal: bool) -> None:
    out, file = console(terminal=terminal)
    clock = Clock()
    with Progress(10, out, clock=clock, price_per_s=0.01) as progress:
        progress.earlier_s = 200  # of a resumed run
        clock.now += 100  # loading is paid for too
        progress.begin(4)
        clock.now += 34
        progress.step(record_of(5, metrics(0.1)))
    assert "cost 3.34" in written(file)


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_shows_the_time_left_of_a_warm_up(terminal: bool) -> None:
    out, file = console(terminal=terminal)
    clock = Clock()
    with Progress(10, out, clock=clock) as progress:
        clock.now += 100  # loading does not count
        for done in range(4):
            progress.phase("warm-up", done, 60)
            clock.now += 31
        progress.phase("warm-up", 4, 60)
    shown = "28:56 left" if terminal else "step  0/10  warm-up 4/60  left   28:56"  # 56 steps of 31 s
    assert shown in written(file)


def test_progress_of_a_resumed_run_without_steps_prints_nothing() -> None:
    out, file = console(terminal=False)
    with Progress(10, out) as progress:
        progress.begin(4)
    assert written(file) == ""


def test_progress_of_a_resumed_run_shows_its_recorded_steps() -> None:
    screen, file = console(terminal=True)
    rows = [
        {"step": 0, "eval/name": "before", "rollout/success": 0.9, "time/total_s": 1.0},
        {"step": 1, **metrics(0.0), "time/total_s": 1.0},
        {"step": 2, **metrics(0.375), "time/total_s": 1.0},
    ]
    with Progress(4, screen, clock=iter(range(100)).__next__) as progress:
        progress.begin(2, recorded=select(read_records(rows), StepRecord))
        progress.phase("rollout", 1, 8)
        shown = written(file)
    assert "37.5" in shown and "2/4" in shown and "90.0" not in shown
    assert "▁▄ " in shown, "the success of both steps"


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_shows_the_step_kl_without_a_reference(terminal: bool) -> None:
    for extra, label, value in (({}, "step KL", "-3.4e-04"), ({"train/kl": 0.25}, "KL", "0.250")):
        out, file = console(terminal=terminal)
        with Progress(1, out) as progress:
            progress.step(record_of(0, {"train/approx_kl": -0.00034, **extra}))
        assert label in written(file) and value in written(file)
        assert ("step KL" in written(file)) == (label == "step KL")


def test_progress_accepts_missing_and_nonfinite_metrics() -> None:
    for terminal in (False, True):
        out, file = console(terminal=terminal)
        with Progress(2, out, clock=Clock()) as progress:
            progress.step(record_of(0, {}))
            progress.step(record_of(1, dict.fromkeys(metrics(0.5), math.nan)))
        assert "nan" in written(file)


def test_progress_on_a_terminal_is_redrawn_and_throttled() -> None:
    out, file = console(terminal=True)
    clock = Clock()
    with Progress(100, out, title="frozen_lake", clock=clock) as progress:
        for step in range(40):
            clock.now += 1
            progress.step(record_of(step, metrics(step / 40)))
        before = len(written(file))
        for done in range(1000):
            progress.phase("rollout", done, 1000)
        assert len(written(file)) == before  # no time has passed
        clock.now += 1
        progress.phase("rollout", 128, 256)
        text = written(file)[before:]
    for part in ("frozen_lake", "40/100", "rollout 128/256", "97.5 %", "12.4k", "0:59 left", "▁", "█"):
        assert part in text


def test_progress_restores_the_terminal_after_an_exception() -> None:
    for error in (KeyboardInterrupt, ValueError):
        out, file = console(terminal=True)
        threads, stdout = threading.active_count(), sys.stdout
        with pytest.raises(error), Progress(10, out) as progress:
            assert written(file).count(HIDE_CURSOR) == 1
            assert threading.active_count() == threads
            progress.step(record_of(0, metrics(0.5)))
            raise error
        text = written(file)
        assert text.rindex(SHOW_CURSOR) > text.rindex(HIDE_CURSOR)
        assert sys.stdout is stdout


def test_progress_note_is_one_line_without_markup() -> None:
    for terminal in (False, True):
        out, file = console(terminal=terminal)
        with Progress(10, out) as progress:
            progress.note("warning [bold]not markup[/bold]\x1b[2J and\nmore " + "x" * 150)
        assert "warning [bold]not markup[/bold] [2J and more " in written(file)
        assert "\x1b[2J" not in written(file)


def test_progress_works_without_unicode() -> None:
    out, file = console(terminal=True, encoding="ascii")
    clock = Clock()
    with Progress(10, out, clock=clock) as progress:
        clock.now += 1
        progress.step(record_of(0, metrics(0.5)))
    assert "50.0 %" in written(file)


def test_make_console_never_redraws_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", file)
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = make_console()
    with Progress(10, out) as progress:
        progress.note("snow 雪")
    assert "snow ?" in written(file)
    assert HIDE_CURSOR not in written(file)


def test_every_idle_reason_has_an_explanation() -> None:
    assert set(EXPLANATIONS) == set(IdleReason)


def test_empty_mask_is_noted_once_also_after_another_reason_and_an_update() -> None:
    file = io.StringIO()
    updated = {**ROLLED, "train/grad_norm": 0.5}
    rows: list[tuple[dict[str, float], IdleReason | None]] = [
        (ROLLED, IdleReason.ZERO_ADVANTAGES),
        ({**updated, "train/loss_token_share": 0.1}, None),
        ({**updated, "train/advantage_token_share": 0.0}, None),  # trained by the KL term alone
        ({**updated, "train/advantage_token_share": 0.0}, None),
        (ROLLED, IdleReason.ZERO_ADVANTAGES),
    ]
    with Progress(len(rows), Console(file=file, width=300)) as progress:
        for number, (row, idle) in enumerate(rows):
            progress.step(record_of(number, row, idle))
    notes = [line for line in file.getvalue().splitlines() if line.startswith("step ") and ": " in line]
    assert len(notes) == 2 and notes[0].startswith("step 1 trained nothing: all advantages were 0")
    assert notes[1].startswith("step 3: algo.advantage_tokens selects none of the sampled tokens")
