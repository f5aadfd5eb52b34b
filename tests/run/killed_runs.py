"""Kills training with SIGKILL at given moments, resumes it, and prints how each run ended. A process of its own.

It imports everything once and forks for each run, which is safe because it does nothing but fork: no thread lives in
it. A moment is one of

    ["event", n]      the n-th change of a file or folder of the run: before it happens
    ["half", n]       half-way through writing the optimiser's state of the n-th checkpoint
    ["line", n]       half-way through writing the n-th line of the metrics
    ["time", share]   that share of an undisturbed run's wall time
    ["stop", share]   the same, by SIGTERM, which leaves a checkpoint
"""

import hashlib
import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

from safetensors.torch import save_file

from runs_for_tests import episodes, metrics, quiet, small
from turnwise.cli.signals import StopSignals
from turnwise.config.schema import Config
from turnwise.files.disk import append_bytes
from turnwise.record import run_folder
from turnwise.record.run_folder import RunFolder
from turnwise.run.train import train
from turnwise.training import learner_state
from turnwise.training.checkpoints import read_state

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree")
SENT = {"time": signal.SIGKILL, "stop": signal.SIGTERM}
"""What the parent sends a child at its moment."""
STOPPED = 128 + signal.SIGTERM
"""Exit status of a child that stopped on request, with or without a checkpoint."""
Moment = Sequence[Any]


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    except KeyboardInterrupt:
        status = STOPPED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def wait(child: int) -> int:
    """The exit status, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def watch_changes(run: Path, at: int | None) -> list[str]:
    """Lists changes of the run's files and folders as they are about to happen; dies at number `at`."""
    seen: list[str] = []

    def hook(event: str, details: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(details[2], int) and details[2] & (os.O_WRONLY | os.O_RDWR)
        if (writes or event in CHANGES) and str(run) in str(details[0]):
            if len(seen) == at:
                die()
            seen.append(f"{event} {details[0]}")

    sys.addaudithook(hook)
    return seen


def die_half_way_through(module: Any, write: Callable[..., None], number: int) -> None:
    """Replaces a function that a module writes by, so that call `number` leaves half of the file and kills."""
    calls = 0

    def half(*given: Any) -> None:
        nonlocal calls
        calls += 1
        if calls <= number:
            return write(*given)
        if write is append_bytes:
            path, data = given
            with path.open("ab", buffering=0) as file:
                file.write(data[: len(data) // 2])
        else:
            write(*given)
            os.truncate(given[1], given[1].stat().st_size // 2)
        die()

    patch.object(module, write.__name__, half).start()


def training(config: Config, moment: Moment | None, *, resume: bool) -> int:
    """A child that trains; it dies at the moment, but for ["time", ...] and ["stop", ...], its parent's business."""
    run = Path(config.record.folder) / str(config.record.name)

    def work() -> None:
        kind, number = moment or ("none", 0)
        if kind == "half":
            die_half_way_through(learner_state, save_file, number)
        elif kind == "line":
            die_half_way_through(run_folder, append_bytes, number)
        seen = watch_changes(run, number if kind == "event" else None)
        with StopSignals().handled(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "mkldnn_matmul failed")  # bfloat16 on a CPU without it
            train(config, resume=resume, console=quiet())
        (run.parent / "events.json").write_text(json.dumps(seen))

    return fork(work)


def ended(run: Path) -> dict[str, Any]:
    """Return everything that must be equal in two runs: tensors, states, and records without times."""
    tensors = sorted(run.glob("**/*.safetensors"))
    states = sorted(run.glob("checkpoints/*/state.json"))
    summary = json.loads((run / "summary.json").read_text())
    return {
        "weights": {str(path.relative_to(run)): hashlib.blake2b(path.read_bytes()).hexdigest() for path in tensors},
        "states": {path.parent.name: asdict(read_state(path.parent)) for path in states},
        "metrics": metrics(run),
        "alarms": RunFolder.open(run).read_alarms(),
        "episodes": hashlib.blake2b(json.dumps(episodes(run)).encode()).hexdigest(),
        "summary": {name: value for name, value in summary.items() if name != "wall_s"},
        "leftovers": [str(path.name) for path in run.glob("**/.*") if path.name != ".lock"],
        "report": (run / "report.html").exists(),
    }


def killed(config: Config, moment: Moment, wall_s: float, *, resume: bool) -> int:
    began = time.perf_counter()
    child = training(config, moment, resume=resume)
    if moment[0] in SENT:
        time.sleep(max(0.0, began + moment[1] * wall_s - time.perf_counter()))
        os.kill(child, SENT[moment[0]])
    return wait(child)


def killed_and_resumed(config: Config, moments: Sequence[Moment], events: int, wall_s: float) -> list[int]:
    """Kills a run at each of the moments, resumes it until it ends, and returns the exit statuses.

    "event" counts as a share of `events`.
    """
    run, statuses = Path(config.record.folder) / str(config.record.name), list[int]()
    for kind, value in moments:
        exact = (kind, int(value * events) if kind == "event" else value)
        if not (run / "summary.json").exists():
            statuses.append(killed(config, exact, wall_s, resume=(run / "config.toml").exists()))
    if not (run / "summary.json").exists():
        statuses.append(wait(training(config, None, resume=(run / "config.toml").exists())))
    return statuses


def allowed_statuses(moment: Moment | None) -> set[int]:
    """Exit statuses of a child to be killed at this moment: it may end before. SIGTERM may come outside of training."""
    if moment is None:
        return {0}
    return {0, STOPPED, -signal.SIGTERM} if moment[0] == "stop" else {0, -signal.SIGKILL}


def find_failure(moments: Sequence[Moment], statuses: Sequence[int]) -> str | None:
    """Describe the first child that ended with an error. The last one may be killed as well: after the summary."""
    for number, (moment, status) in enumerate(zip_longest(moments[: len(statuses)], statuses)):
        if status not in allowed_statuses(moment):
            return f"start {number} ended with status {status}"
    return None


def main(folder: Path, plan: list[list[Moment]]) -> None:
    """`plan`: for each run the moments at which it is killed, one after the other."""
    began = time.perf_counter()
    assert wait(training(small(folder / "plain"), None, resume=False)) == 0
    wall_s = time.perf_counter() - began
    events = json.loads((folder / "plain/events.json").read_text())
    report: dict[str, Any] = {"plain": ended(folder / "plain/run"), "events": events, "runs": []}
    for number, moments in enumerate(plan):
        statuses = killed_and_resumed(small(folder / str(number)), moments, len(events), wall_s)
        report["runs"].append({"moments": moments, "statuses": statuses, **ended(folder / f"{number}/run")})
    sys.stdout.write(json.dumps(report))
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
