"""Trackers: log a run's metrics to Weights & Biases, TensorBoard or trackio as well.

Each is an optional package. By default nothing leaves this machine: W&B is offline unless WANDB_MODE is set (`wandb
sync` uploads later), trackio and TensorBoard write files. The run folder remains the record: a tracker that fails warns
once and is switched off, and training continues.
"""

import contextlib
import importlib.util
import io
import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from turnwise.core.errors import UserError
from turnwise.record.rows import Record
from turnwise.record.steps import finite_number
from turnwise.text.suggestions import suggest

PROJECT = "turnwise"
FOLDER = "trackers"
"""Folder of the trackers' files in the run folder."""

Numbers = Mapping[str, float]


class Tracker(Protocol):
    """Logs numbers by step. `resumed_after` is the last kept step of a resumed run; None for a new run."""

    def __init__(self, config: Mapping[str, Any], name: str, folder: Path, resumed_after: int | None) -> None: ...
    def log(self, step: int, numbers: Numbers) -> None: ...
    def close(self) -> None: ...


class Wandb:
    """Weights & Biases. Metrics are plotted over "step", not over the order of logging."""

    def __init__(self, config: Mapping[str, Any], name: str, folder: Path, resumed_after: int | None) -> None:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")  # wandb rejects unknown modes
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=name,
            id=_run_id(folder / "wandb_id", new=resumed_after is None),
            resume="allow",
            dir=str(folder),
            config=dict(config),
            mode=mode,
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, numbers: Numbers) -> None:
        self._run.log({**numbers, "step": step})

    def close(self) -> None:
        self._run.finish()


class Tensorboard:
    """TensorBoard, with the writer of torch, which needs the package `tensorboard`."""

    def __init__(self, config: Mapping[str, Any], name: str, folder: Path, resumed_after: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = None if resumed_after is None else resumed_after + 1  # hide steps that are run again
        self._writer = SummaryWriter(log_dir=str(folder / "tensorboard" / name), purge_step=purge, flush_secs=10)
        if resumed_after is None:
            lines = json.dumps(config, indent=2, default=str).splitlines()
            self._writer.add_text("config", "\n".join(f"    {line}" for line in lines), 0)

    def log(self, step: int, numbers: Numbers) -> None:
        for key, value in numbers.items():
            self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        self._writer.close()


class Trackio:
    """trackio, in its own folder, where its dashboard looks for runs by name."""

    def __init__(self, config: Mapping[str, Any], name: str, folder: Path, resumed_after: int | None) -> None:
        import trackio

        self._package = trackio
        with contextlib.redirect_stdout(io.StringIO()):  # it prints for notebooks
            self._run = trackio.init(
                project=PROJECT,
                name=name,
                config=json.loads(json.dumps(config, default=str)),
                resume="never" if resumed_after is None else "allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, step: int, numbers: Numbers) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Finish through the package if this is its current run; else the package finishes it again at exit."""
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                self._package.finish()
            except RuntimeError:
                self._run.finish()


TRACKERS: dict[str, type[Tracker]] = {"wandb": Wandb, "tensorboard": Tensorboard, "trackio": Trackio}


def check_trackers(names: Sequence[str]) -> None:
    """Raise a UserError for an unknown tracker or a missing package."""
    for name in names:
        if name not in TRACKERS:
            raise UserError(f'Unknown tracker "{name}" in record.trackers:{suggest(name, TRACKERS)}')
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"record.trackers: {name} is not installed. Run pip install {name}, or remove it from the list."
            )


class Trackers:
    """All trackers of a run. Not a part of the step: evaluations before and after training are logged too."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        config: Mapping[str, Any],
        name: str,
        folder: Path,
        warn: Callable[[str], None],
        resumed_after: int | None = None,
    ) -> None:
        """`folder`: the run folder. `warn` prints a line. `resumed_after`: the last kept step of a resumed run."""
        check_trackers(names)
        self._warn = warn
        self._active: dict[str, Tracker] = {}
        files = folder / FOLDER
        for tracker in dict.fromkeys(names):
            try:
                files.mkdir(exist_ok=True)
                self._active[tracker] = TRACKERS[tracker](config, name, files, resumed_after)
            except Exception as error:
                self.close()
                raise UserError(
                    f"Cannot start the tracker {tracker} ({_summarize(error)}). Fix that, or remove it."
                ) from error

    def log(self, record: Record) -> None:
        """Log the finite numbers of a record at its step."""
        values = {name: finite_number(value) for name, value in record.to_row().items() if name != "step"}
        if numbers := {name: number for name, number in values.items() if number is not None}:
            self._call_each(lambda tracker: tracker.log(record.step, numbers), "log")

    def close(self) -> None:
        self._call_each(lambda tracker: tracker.close(), "close")
        self._active.clear()

    def _call_each(self, call: Callable[[Tracker], None], action: str) -> None:
        for name, tracker in list(self._active.items()):
            try:
                call(tracker)
            except Exception as error:  # a third-party package must not end the training
                del self._active[name]
                reason = _summarize(error)
                self._warn(f"{name} failed to {action} ({reason}) and is switched off; the run folder has all metrics")


def _run_id(path: Path, *, new: bool) -> str:
    """Return the run's id in W&B, which a resumed run keeps."""
    if not new and path.exists():
        return path.read_text(encoding="ascii").strip()
    run_id = uuid.uuid4().hex[:12]
    path.write_text(run_id, encoding="ascii")
    return run_id


def _summarize(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
