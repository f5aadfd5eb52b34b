import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from turnwise.core.errors import UserError
from turnwise.record.rows import read_records
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
        "not/shown": 1.0,
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


def test_run_monitor_reads_new_rows_and_alarms(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=5)
    monitor = RunMonitor(folder)
    assert monitor.refresh()
    assert [record.step for record in monitor.records] == [1, 2, 3, 4, 5]
    assert "not/shown" not in monitor.records[0].to_row() and "rollout/success" in monitor.records[0].to_row()
    assert not monitor.refresh()
    append(folder, training(6))
    append(folder, {"step": 6, "text": "gradient spike"}, name="alarms.jsonl")
    assert monitor.refresh()
    assert [record.step for record in monitor.records] == [1, 2, 3, 4, 5, 6]
    assert monitor.alarms == [{"step": 6, "text": "gradient spike"}]


def test_run_monitor_drops_rows_that_a_resume_discarded(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=8)
    monitor = RunMonitor(folder)
    monitor.refresh()
    kept = (folder / "metrics.jsonl").read_bytes().split(b"\n")[:3]
    (folder / "metrics.jsonl").write_bytes(b"\n".join(kept) + b"\n")
    monitor.refresh()
    assert [record.step for record in monitor.records] == [1, 2, 3]


def test_watch_frame_shows_progress_plots_evaluation_and_alarms(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "lake", steps=10)
    append(folder, {"step": 10, "eval/success": 0.5, "eval/success_low": 0.4, "eval/success_high": 0.6})
    append(folder, {"step": 7, "text": "entropy \x1b[31mfell [bold]"}, name="alarms.jsonl")
    monitor = RunMonitor(folder)
    monitor.refresh()
    text = shown(monitor.frame(live=False))
    expected_texts = (
        "lake", "10/20", "0:30 left", "success", "reward", "entropy", "KL of the update", "response tokens",
        "gradient norm", "tokens per second", "12.3k", "50.0 % (40.0 to 60.0 %) at step 10",
        "step 7: entropy  [31mfell [bold]",
    )  # fmt: skip
    for expected in expected_texts:
        assert expected in text, expected
    assert "\x1b" not in text
    assert "Ctrl-C" not in text and "Ctrl-C" in shown(monitor.frame(live=True))


@pytest.mark.parametrize(("width", "height"), [(20, 10), (40, 24), (80, 24), (200, 60)])
def test_watch_frame_fits_its_terminal(tmp_path: Path, width: int, height: int) -> None:
    folder = make_run(tmp_path / ("n" * 60), steps=10)
    append(folder, *({"step": 1, "text": "long " * 50} for _ in range(9)), name="alarms.jsonl")
    monitor = RunMonitor(folder)
    monitor.refresh()
    lines = shown(monitor.frame(live=True), width, height).rstrip("\n").split("\n")
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 13)
    assert "success" in "".join(lines)


def test_watch_frame_uses_ascii_without_unicode(tmp_path: Path) -> None:
    monitor = RunMonitor(make_run(tmp_path / "run", steps=10))
    monitor.refresh()
    text = shown(monitor.frame(live=False), encoding="ascii")
    assert "*" in text and "?" not in text.replace("/?", "")


def test_watch_frame_accepts_no_rows_and_invalid_numbers(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=0)
    monitor = RunMonitor(folder)
    monitor.refresh()
    assert "no steps yet" in shown(monitor.frame(live=True))
    append(folder, {"step": 0, "time/warmup_s": 1.0}, {"step": 1, "rollout/success": None, "train/entropy": "NaN"})
    append(folder, {"step": 10**30, "rollout/success": 5, "train/entropy": 1e308, "eval/success": "x"})
    monitor.refresh()
    shown(monitor.frame(live=True))


def test_watch_frame_of_sft_has_no_total(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=0)
    monitor = RunMonitor(folder)
    monitor.refresh()
    assert "0/20" in shown(monitor.frame(live=False)) and "starting" in shown(monitor.frame(live=False))
    append(folder, {"step": 3, "train/loss": 0.5, "train/grad_norm": 1.0, "time/total_s": 1.0})
    monitor.refresh()
    text = shown(monitor.frame(live=False))
    assert "3/?" in text and "running" in text and "loss" in text


def test_remaining_s_uses_recent_steps() -> None:
    rows = [training(step, **{"time/total_s": 100.0 if step <= 10 else 2.0}) for step in range(1, 31)]
    records = read_records(rows)
    assert remaining_s(records, 40) == 20.0
    assert remaining_s(records, None) is None
    assert remaining_s([], 40) is None
    assert remaining_s(records, 30) == 0.0


def test_watch_prints_one_frame_without_a_terminal(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=100)
    watch(make_run(tmp_path / "run", steps=5), console, sleep=lambda _: pytest.fail("it waited"))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("tokens per second") == 1


def terminal() -> Console:
    return Console(file=io.StringIO(), width=100, height=40, force_terminal=True, force_interactive=True)


def test_watch_follows_until_the_run_is_finished(tmp_path: Path) -> None:
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
    for count in ("5/20", "6/20", "7/20", "8/8"):
        assert count in text
    assert text.rindex("\x1b[?1049l") < text.rindex(
        "finished"
    )  # the terminal is restored before the last frame is printed


def test_watch_ends_on_ctrl_c_and_leaves_the_last_frame(tmp_path: Path) -> None:
    console = terminal()

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    watch(make_run(tmp_path / "run", steps=5), console, sleep=interrupt)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "\x1b[?1049l" in text and "\x1b[?25h" in text  # screen and cursor are restored
    assert "5/20" in text[text.rindex("\x1b[?1049l") :]


def test_watch_refuses_other_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run folder"):
        watch(tmp_path, terminal())


def test_watch_command_finds_a_run_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from turnwise.cli.view import watch_app

    (tmp_path / "runs").mkdir()
    make_run(tmp_path / "runs" / "lake", steps=5)
    monkeypatch.chdir(tmp_path)
    watch_app(["lake"], result_action="return_value")
    assert "5/20" in capsys.readouterr().out


def test_watch_shows_a_run_that_its_time_limit_stopped(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=5)
    (folder / "summary.json").write_text('{"finished": false}')
    console = terminal()
    watch(folder, console, sleep=lambda seconds: pytest.fail("waits for a run that has ended"))
    assert isinstance(console.file, io.StringIO)
    assert "5/20" in console.file.getvalue() and "stopped by its time limit" in console.file.getvalue()
