"""Trackers: a run's numbers also go to Weights & Biases, TensorBoard or trackio, for those who compare runs there.

Each is an optional package. Nothing leaves this machine unless its own settings say so: W&B is offline unless
WANDB_MODE says otherwise (`wandb sync` sends it later), trackio and TensorBoard write files. The run folder stays the
record: a tracker that fails is told once and left out, and training goes on.
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
from turnwise.core.suggestions import nearest
from turnwise.record.metrics import finite_number

PROJECT = "turnwise"
FOLDER = "trackers"
"""Of the run folder: where trackers keep their files."""

Numbers = Mapping[str, float]


class Tracker(Protocol):
    """Made with the run's settings, its name, the folder for its files and, of a resumed run, its last step."""

    def __init__(self, config: Mapping[str, Any], name: str, folder: Path, resumed_after: int | None) -> None: ...
    def log(self, step: int, numbers: Numbers) -> None: ...
    def close(self) -> None: ...


class Wandb:
    """Rows are drawn over "step", not over the order in which they came: an evaluation belongs to its step."""

    def __init__(self, config: Mapping[str, Any], name: str, folder: Path, resumed_after: int | None) -> None:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")  # it refuses what it does not know
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=name,
            id=_kept_id(folder / "wandb_id", new=resumed_after is None),
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
    """torch's own writer: whoever looks at the curves has the package `tensorboard` that it needs."""

    def __init__(self, config: Mapping[str, Any], name: str, folder: Path, resumed_after: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = None if resumed_after is None else resumed_after + 1  # what is run again is not shown twice
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
    """In trackio's own folder, where its dashboard looks: the run is known by its name."""

    def __init__(self, config: Mapping[str, Any], name: str, folder: Path, resumed_after: int | None) -> None:
        import trackio

        self._package = trackio
        with contextlib.redirect_stdout(io.StringIO()):  # it speaks to a person at a notebook
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
        """Where it is the package's present run it is ended as such, or it would be again when the program ends."""
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                self._package.finish()
            except RuntimeError:
                self._run.finish()


TRACKERS: dict[str, type[Tracker]] = {"wandb": Wandb, "tensorboard": Tensorboard, "trackio": Trackio}


def check_trackers(names: Sequence[str]) -> None:
    """Refuses what no tracker can do, before anything starts."""
    for name in names:
        if name not in TRACKERS:
            raise UserError(f'record.trackers holds "{name}", which is none:{nearest(name, TRACKERS)}')
        if importlib.util.find_spec(name) is None:
            raise UserError(f"record.trackers {name} needs a package: pip install {name}, or leave it out")


class Trackers:
    """All trackers of a run. `log` takes the rows of `metrics.jsonl` and sends their numbers on."""

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
        """`folder`: the run's. `warn` says a line to the person. `resumed_after`: the last step that is kept."""
        check_trackers(names)
        self._warn = warn
        self._active: dict[str, Tracker] = {}
        place = folder / FOLDER
        for each in dict.fromkeys(names):
            try:
                place.mkdir(exist_ok=True)
                self._active[each] = TRACKERS[each](config, name, place, resumed_after)
            except Exception as error:
                self.close()
                raise UserError(f"{each} does not start ({_line(error)}): mend that, or leave it out") from error

    def log(self, row: Mapping[str, Any]) -> None:
        """A row's numbers, at its step; text, nulls and what is not finite are left out."""
        numbers = {key: number for key, value in row.items() if (number := finite_number(value)) is not None}
        step = int(numbers.pop("step"))
        if numbers:
            self._each(lambda tracker: tracker.log(step, numbers), "log")

    def close(self) -> None:
        self._each(lambda tracker: tracker.close(), "finish")
        self._active.clear()

    def _each(self, act: Callable[[Tracker], None], what: str) -> None:
        for name, tracker in list(self._active.items()):
            try:
                act(tracker)
            except Exception as error:  # a package of others: nothing it does may end a training
                del self._active[name]
                self._warn(f"{name} could not {what} ({_line(error)}): it is off from here, the run folder has all")


def _kept_id(path: Path, *, new: bool) -> str:
    """An id that stays the run's when it is resumed."""
    if not new and path.exists():
        return path.read_text(encoding="ascii").strip()
    made = uuid.uuid4().hex[:12]
    path.write_text(made, encoding="ascii")
    return made


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
