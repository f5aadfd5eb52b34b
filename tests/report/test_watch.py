import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from turnwise.core.errors import UserError
from turnwise.record.jsonl_follower import JsonlFollower
from turnwise.report.terminal import BRAILLE, draw_ascii_plot, draw_braille_plot
from turnwise.report.watch import RunMonitor, WatchFrame, remaining_s, watch


def training(step: int, **changes: Any) -> dict[str, Any]:
    return {
        "step": step,
        "rollout/success": min(step / 20, 1.0),
        "rollout/reward": step / 10,
        "rollout/response_tokens": 30.0 - step,
        "train/entropy": 1 / step,
        "train/approx_kl": 0.001,
        "train/grad_norm": 0.5,
        "time/tokens_per_s": 12_345.0,
        "time/total_s": 3.0,
        "unheard/of": 1.0,
        **changes,
    }


def make_run(folder: Path, steps: int, total: int = 20) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(f"[train]\nsteps = {total}\n")
    append(folder, *(training(step) for step in range(1, steps + 1)))
    return folder


def append(folder: Path, *rows: dict[str, Any], name: str = "metrics.jsonl") -> None:
    with (folder / name).open("ab") as file:
        file.write(b"".join(json.dumps(row).encode() + b"\n" for row in rows))


def shown(frame: WatchFrame, width: int = 120, height: int = 40, encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    console = Console(file=file, width=width, height=height)
    console.print(frame)
    file.seek(0)
    return file.read()


def test_a_follower_gives_each_row_once_and_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    follower = JsonlFollower(path)
    assert follower.poll().rows == []  # not there yet
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n{"st')
    assert [row["step"] for row in follower.poll().rows] == [1, 2]
    assert follower.poll().rows == []
    with path.open("ab") as file:
        file.write(b'ep": 3}\n')
    assert [row["step"] for row in follower.poll().rows] == [3]


def test_a_follower_starts_again_where_a_file_was_cut_back_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n')
    follower = JsonlFollower(path)
    follower.poll()
    os.truncate(path, len(b'{"step": 1}\n'))
    cut = follower.poll()
    assert cut.reset and [row["step"] for row in cut.rows] == [1]
    longer = tmp_path / "aside"
    longer.write_bytes(b'{"step": 1}\n{"step": 9}\n{"step": 10}\n')  # what was read still stands: a copy of the file
    longer.replace(path)
    grown = follower.poll()
    assert not grown.reset and [row["step"] for row in grown.rows] == [9, 10]
    longer.write_bytes(b'{"step": 1}\n{"step": 8}\n{"step": 10}\n{"step": 11}\n')  # grown again beyond where it was
    longer.replace(path)
    replaced = follower.poll()
    assert replaced.reset and [row["step"] for row in replaced.rows] == [1, 8, 10, 11]
    assert not follower.poll().reset


def test_a_follower_skips_and_counts_what_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step": 1}\nnonsense\n\xff\xfe\n[1]\n' + b"[" * 100_000 + b'\n{"step": 2}\n')
    follower = JsonlFollower(path)
    assert [row["step"] for row in follower.read_all()] == [1, 2]
    assert follower.broken == 4


def test_a_plot_rises_from_the_lower_left_to_the_upper_right() -> None:
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
def test_any_plot_fills_its_field_with_a_line_without_holes(points: Any, width: int, height: int) -> None:
    values = [value for _, value in points]
    lines = draw_braille_plot(sorted(points), width, height, min(values), max(values))
    assert [len(line) for line in lines] == [width] * height
    for column in range(width):
        assert any(ord(line[column]) != BRAILLE for line in lines)


def test_what_was_watched_is_what_the_files_say(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=5)
    watched = RunMonitor(folder)
    assert watched.refresh()
    assert [row["step"] for row in watched.rows] == [1, 2, 3, 4, 5]
    assert "unheard/of" not in watched.rows[0]
    assert not watched.refresh()
    append(folder, training(6))
    append(folder, {"step": 6, "text": "gradient spike"}, name="alarms.jsonl")
    assert watched.refresh()
    assert [row["step"] for row in watched.rows] == [1, 2, 3, 4, 5, 6]
    assert watched.alarms == [{"step": 6, "text": "gradient spike"}]


def test_a_resumed_run_is_shown_without_what_was_cut_away(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=8)
    watched = RunMonitor(folder)
    watched.refresh()
    kept = (folder / "metrics.jsonl").read_bytes().split(b"\n")[:3]
    (folder / "metrics.jsonl").write_bytes(b"\n".join(kept) + b"\n")
    watched.refresh()
    assert [row["step"] for row in watched.rows] == [1, 2, 3]


def test_the_frame_shows_progress_curves_evaluations_and_alarms(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "lake", steps=10)
    append(folder, {"step": 10, "eval/success": 0.5, "eval/success_low": 0.4, "eval/success_high": 0.6})
    append(folder, {"step": 7, "text": "entropy \x1b[31mfell [bold]"}, name="alarms.jsonl")
    watched = RunMonitor(folder)
    watched.refresh()
    text = shown(watched.frame(live=False))
    for said in ("lake", "10/20", "0:30 left", "success", "reward", "entropy", "KL of a step", "response tokens",
                 "gradient norm", "tokens per second", "12.3k", "50.0 % (40.0 to 60.0 %) at step 10",
                 "step 7: entropy  [31mfell [bold]"):  # fmt: skip
        assert said in text, said
    assert "\x1b" not in text
    assert "Ctrl-C" not in text and "Ctrl-C" in shown(watched.frame(live=True))


@pytest.mark.parametrize(("width", "height"), [(20, 10), (40, 24), (80, 24), (200, 60)])
def test_a_frame_fits_its_terminal(tmp_path: Path, width: int, height: int) -> None:
    folder = make_run(tmp_path / ("n" * 60), steps=10)
    append(folder, *({"step": 1, "text": "long " * 50} for _ in range(9)), name="alarms.jsonl")
    watched = RunMonitor(folder)
    watched.refresh()
    lines = shown(watched.frame(live=True), width, height).rstrip("\n").split("\n")
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 13)
    assert "success" in "".join(lines)


def test_a_terminal_without_braille_gets_letters(tmp_path: Path) -> None:
    watched = RunMonitor(make_run(tmp_path / "run", steps=10))
    watched.refresh()
    text = shown(watched.frame(live=False), encoding="ascii")
    assert "*" in text and "?" not in text.replace("/?", "")


def test_nothing_yet_and_numbers_that_are_none_are_no_error(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=0)
    watched = RunMonitor(folder)
    watched.refresh()
    assert "no steps yet" in shown(watched.frame(live=True))
    append(folder, {"step": 0, "time/warmup_s": 1.0}, {"step": 1, "rollout/success": None, "train/entropy": "NaN"})
    append(folder, {"step": 10**30, "rollout/success": 5, "train/entropy": 1e308, "eval/success": "x"})
    watched.refresh()
    shown(watched.frame(live=True))


def test_imitation_has_as_many_steps_as_it_has(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=0)
    watched = RunMonitor(folder)
    watched.refresh()
    assert "0/20" in shown(watched.frame(live=False)) and "starting" in shown(watched.frame(live=False))
    append(folder, {"step": 3, "train/loss": 0.5, "train/grad_norm": 1.0, "time/total_s": 1.0})
    watched.refresh()
    text = shown(watched.frame(live=False))
    assert "3/?" in text and "running" in text and "loss" in text


def test_the_time_left_follows_the_pace_of_recent_steps() -> None:
    rows = [training(step, **{"time/total_s": 100.0 if step <= 10 else 2.0}) for step in range(1, 31)]
    assert remaining_s(rows, 40) == 20.0
    assert remaining_s(rows, None) is None
    assert remaining_s([], 40) is None
    assert remaining_s(rows, 30) == 0.0


def test_without_a_terminal_one_frame_is_printed(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=100)
    watch(make_run(tmp_path / "run", steps=5), console, sleep=lambda _: pytest.fail("it waited"))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("tokens per second") == 1


def terminal() -> Console:
    return Console(file=io.StringIO(), width=100, height=40, force_terminal=True, force_interactive=True)


def test_on_a_terminal_it_follows_until_the_run_is_finished(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=5)
    console = terminal()
    naps = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        append(folder, training(5 + len(naps)))
        if len(naps) == 3:
            (folder / "summary.json").write_text("{}")

    watch(folder, console, sleep=sleep)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert len(naps) == 3
    for seen in ("5/20", "6/20", "7/20", "8/8"):
        assert seen in text
    assert text.rindex("\x1b[?1049l") < text.rindex("finished")  # the terminal is given back, then the last frame


def test_ctrl_c_ends_watching_and_leaves_the_last_frame(tmp_path: Path) -> None:
    console = terminal()

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    watch(make_run(tmp_path / "run", steps=5), console, sleep=interrupted)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "\x1b[?1049l" in text and "\x1b[?25h" in text  # the screen and the cursor are back
    assert "5/20" in text[text.rindex("\x1b[?1049l") :]


def test_what_is_no_run_is_refused_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no run folder"):
        watch(tmp_path, terminal())


def test_the_command_shows_a_run_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from turnwise.cli.watch import app

    (tmp_path / "runs").mkdir()
    make_run(tmp_path / "runs" / "lake", steps=5)
    monkeypatch.chdir(tmp_path)
    app(["lake"], result_action="return_value")
    assert "5/20" in capsys.readouterr().out
