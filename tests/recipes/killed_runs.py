"""Kills training with SIGKILL at given moments, resumes it, and prints how each run ended. A process of its own.

It imports everything once and forks for each run, which is safe because it does nothing but fork: no thread lives in
it. A moment is one of

    ["event", n]      the n-th change of a file or folder of the run: before it happens
    ["half", n]       half-way through writing the optimiser's state of the n-th checkpoint
    ["line", n]       half-way through writing the n-th line of the metrics
    ["time", share]   that share of an undisturbed run's wall time
"""

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from runs_for_tests import episodes, learnt, metrics, quiet, small
from turnwise.recipes.run import train
from turnwise.record import run_folder
from turnwise.train import checkpoints

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree")
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
    finally:
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


def die_half_way_through(module: Any, name: str, number: int) -> None:
    """Replaces a function that writes a file, so that call `number` leaves half of it and kills the process."""
    plain, calls = getattr(module, name), 0

    def half(*given: Any) -> None:
        nonlocal calls
        calls += 1
        if calls <= number:
            return plain(*given)
        if name == "append":
            path, data = given
            with path.open("ab", buffering=0) as file:
                file.write(data[: len(data) // 2])
        else:
            plain(*given)
            os.truncate(given[1], given[1].stat().st_size // 2)
        die()

    setattr(module, name, half)


def training(folder: Path, moment: Moment | None, *, resume: bool) -> int:
    """A child that trains; it dies at the moment, but for ["time", ...], which is its parent's business."""

    def work() -> None:
        kind, number = moment or ("none", 0)
        if kind == "half":
            die_half_way_through(checkpoints, "save_file", number)
        elif kind == "line":
            die_half_way_through(run_folder, "append", number)
        seen = watch_changes(folder / "run", number if kind == "event" else None)
        train(small(folder), resume=resume, console=quiet())
        (folder / "events.json").write_text(json.dumps(seen))

    return fork(work)


def ended(folder: Path) -> dict[str, Any]:
    """What two runs must have in common."""
    tensors = hashlib.blake2b()
    for name, tensor in sorted(learnt(folder / "run").items()):
        tensors.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return {
        "weights": tensors.hexdigest(),
        "metrics": metrics(folder / "run"),
        "episodes": hashlib.blake2b(json.dumps(episodes(folder / "run")).encode()).hexdigest(),
        "leftovers": [str(path.name) for path in folder.glob("run/**/.*") if path.name != ".lock"],
    }


def killed(folder: Path, moment: Moment, wall_s: float, *, resume: bool) -> int:
    began = time.perf_counter()
    child = training(folder, moment, resume=resume)
    if moment[0] == "time":
        time.sleep(max(0.0, began + moment[1] * wall_s - time.perf_counter()))
        os.kill(child, signal.SIGKILL)
    return wait(child)


def main(folder: Path, plan: list[list[Moment]]) -> None:
    """`plan`: for each run the moments at which it is killed, one after the other; "event" as a share of all events."""
    plain = folder / "plain"
    began = time.perf_counter()
    assert wait(training(plain, None, resume=False)) == 0
    wall_s = time.perf_counter() - began
    events = json.loads((plain / "events.json").read_text())
    report: dict[str, Any] = {"plain": ended(plain), "events": events, "runs": []}
    for number, moments in enumerate(plan):
        own, statuses = folder / str(number), list[int]()
        for kind, value in moments:
            exact = (kind, int(value * len(events)) if kind == "event" else value)
            if not (own / "run/summary.json").exists():
                statuses.append(killed(own, exact, wall_s, resume=(own / "run/config.toml").exists()))
        if not (own / "run/summary.json").exists():
            assert wait(training(own, None, resume=(own / "run/config.toml").exists())) == 0
        report["runs"].append({"moments": moments, "statuses": statuses, **ended(own)})
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
