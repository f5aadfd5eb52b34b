"""Signals that stop a command, sent to a real process."""

import asyncio
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from processes_for_tests import Forked, run_turnwise
from runs_for_tests import metrics
from turnwise.cli.signals import StopSignals
from turnwise.training.checkpoints import newest
from work_for_tests import wait_until

ENDLESS = [
    *("--model.warmup_steps", "5", "--eval.episodes", "1", "--eval.every", "0", "--checkpoint.every", "100000"),
    *("--name", "run", "--system.threads", "1", "--rollout.max_new_tokens", "4"),
]
COMMANDS = {
    "train": [
        "train",
        "bandit",
        "--train.steps",
        "100000",
        "--rollout.groups",
        "1",
        "--rollout.group_size",
        "2",
        "--train.mini_batch",
        "2",
    ],
    "sft": ["sft", "bandit", "--sft.epochs", "100000", "--sft.count", "4"],
}
WAIT_S = 900.0


def start(command: str, folder: Path, **options: Any) -> Forked:
    return Forked(run_turnwise, [*COMMANDS[command], *ENDLESS, "--record.folder", str(folder)], **options)


def wait_for(condition: Callable[[], bool], process: Forked) -> None:
    assert wait_until(lambda: condition() or process.poll() is not None, WAIT_S) and process.poll() is None


def steps_done(run: Path) -> int:
    return max((row["step"] for row in metrics(run)), default=0) if (run / "config.toml").exists() else 0


def ignore_ctrl_c() -> None:
    """Ignore SIGINT, as a shell does for its background jobs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def take_terminal() -> None:
    """Make the terminal that is the standard input that of a new session."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.parametrize("command", COMMANDS)
def test_sigterm_saves_a_checkpoint_and_prints_how_to_resume(command: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with (
        (tmp_path / "stderr").open("w") as file,
        start(command, tmp_path, stdout=file.fileno(), stderr=file.fileno(), prepare=ignore_ctrl_c) as process,
    ):
        wait_for(lambda: steps_done(run) >= 2, process)
        os.kill(process.pid, signal.SIGTERM)
        status = process.wait(WAIT_S)
    stderr = (tmp_path / "stderr").read_text()
    assert status == 128 + signal.SIGTERM, stderr
    assert f"turnwise {command} --resume {run}" in stderr
    found = newest(run / "checkpoints")
    assert found is not None and found[1].step == steps_done(run) >= 2


def test_ignored_sighup_stays_ignored() -> None:
    """Ignore SIGHUP, as nohup does. The previous handlers are restored afterwards."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals().handled():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert callable(signal.getsignal(signal.SIGTERM))
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGHUP])
def test_further_sigterm_and_sighup_do_not_interrupt_the_checkpoint(first: signal.Signals) -> None:
    stop_signals, done = StopSignals(), []

    async def train() -> None:
        try:
            signal.raise_signal(first)
            await asyncio.Event().wait()
        finally:
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
            done.append("saved")

    with pytest.raises(KeyboardInterrupt), stop_signals.handled():
        asyncio.run(train())
    assert done == ["saved"] and stop_signals.received == first


def test_ctrl_c_after_sigterm_stops_at_once() -> None:
    done = []

    async def train() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            done.append("saving")
            signal.raise_signal(signal.SIGINT)
            done.append("saved")

    with pytest.raises(KeyboardInterrupt), StopSignals().handled():
        asyncio.run(train())
    assert done == ["saving"]


def test_closed_terminal_still_saves_a_checkpoint(tmp_path: Path) -> None:
    """A closing terminal sends SIGHUP, and everything printed from then on fails."""
    run = tmp_path / "run"
    ours, theirs = pty.openpty()

    process = start("train", tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, prepare=take_terminal)
    os.close(theirs)
    os.set_blocking(ours, False)

    def read_and_look() -> bool:
        with suppress(BlockingIOError):
            os.read(ours, 1 << 16)
        return steps_done(run) >= 2

    with process:
        wait_for(read_and_look, process)
        os.close(ours)
        process.wait(WAIT_S)
    found = newest(run / "checkpoints")
    assert found is not None and found[1].step == steps_done(run)
    assert process.returncode == 128 + signal.SIGHUP


ENTRY = """
import os, signal, sys, types
from turnwise import __main__

def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)

if sys.argv[1] == "import":
    sys.meta_path.insert(0, types.SimpleNamespace(find_spec=interrupt))
else:
    sys.modules["turnwise.cli.main"] = types.SimpleNamespace(main=lambda: 7)
status = __main__.main()
interrupt()
sys.exit(status)
"""


@pytest.mark.parametrize(("moment", "status", "stderr"), [("import", 130, "turnwise: stopped\n"), ("exit", 7, "")])
def test_ctrl_c_while_python_imports_or_exits_shows_no_traceback(moment: str, status: int, stderr: str) -> None:
    ran = subprocess.run([sys.executable, "-c", ENTRY, moment], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (status, stderr)
