"""A run's folder: files only, readable without turnwise.

    config.toml                     resolved configuration; reproduces the run
    metrics.jsonl                   one row per step or evaluation, each with the key "step"
    summary.json                    results; "finished" is false in it if a time limit stopped the run
    trajectories/
        step_000012.jsonl           trajectories of a step, one per line, written at the end of the step
        eval_before_000000.jsonl    trajectories of an evaluation: before training, validation, after training
        index.jsonl                 one line per trajectory, with the position of its line in its file
        tokens.jsonl                text of each token id that occurs in the trajectories
    images/HASH.png                 images in the trajectories' contexts, by content hash
    alarms.jsonl                    step and text of each alarm
    spans.jsonl                     who did what when in each step: asynchronous and cluster runs
    hangs/                          stacks of actors of a cluster that hung and were replaced
    judges.jsonl                    calls and tokens of judges, if there are any
    calls.sqlite                    model calls of the agents that are trained through the gateway
    checkpoints/                    written by `training`
    base/                           the tiny model after its warm-up, if the run started from it
    past/                           earlier policies of a self-play run
    replay/                         episodes that an off-policy run trains on
    provenance.json                 version and source files at the start of the run; copies in sources/

"step" is the number of completed steps when the row was written: 0 before training.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

from turnwise.concurrency.spans import Span
from turnwise.core.errors import UserError
from turnwise.core.trajectory import TokenName
from turnwise.files.disk import (
    LOCK_NAME,
    FolderLock,
    append_bytes,
    is_leftover,
    remove_leftovers,
    wrap_disk_errors,
    write_atomic,
)
from turnwise.files.run_folders import METRICS_FILE, NOT_STARTED, check_run_folder
from turnwise.record.images import IMAGES_FOLDER
from turnwise.record.jsonl import drop_partial_line, encode_row, read_jsonl, replace_nonfinite
from turnwise.record.judge_usage import JUDGES_FILE
from turnwise.record.provenance import FILE as PROVENANCE
from turnwise.record.provenance import SOURCES
from turnwise.record.resume_command import advise_resume, spell_resume
from turnwise.record.rows import (
    AFTER,
    EvaluationRecord,
    Record,
    is_evaluation,
    read_record,
    read_records,
    select,
)
from turnwise.record.trajectories import TokenNamesFile

ALARMS_FILE = "alarms.jsonl"
SPANS_FILE = "spans.jsonl"
CALLS_FILE = "calls.sqlite"
REPLAY_FOLDER = "replay"


class RunFolder:
    """The files of one run. Writing needs the folder's lock, which `create` and `open(writing=True)` acquire."""

    def __init__(self, path: Path, lock: FolderLock | None) -> None:
        self.path = path
        self.metrics_path = path / METRICS_FILE
        self.alarms_path = path / ALARMS_FILE
        self.spans_path = path / SPANS_FILE
        self.summary_path = path / "summary.json"
        self.checkpoints = path / "checkpoints"
        self.past = path / "past"
        """Folder of earlier policies, the opponents in self-play."""
        self.replay = path / REPLAY_FOLDER
        """Folder of the episodes that an off-policy run trains on."""
        self.trajectories = path / "trajectories"
        self.index_path = self.trajectories / "index.jsonl"
        self._lock = lock
        self._write_failed = False
        self._token_names = TokenNamesFile(self.trajectories / "tokens.jsonl")
        self.listeners: list[Callable[[Record], None]] = []
        """Called with every record after its row is written."""

    @classmethod
    def create(cls, path: Path | str, config_toml: str) -> Self:
        """Create and lock the folder of a new run. An existing run is never overwritten."""
        path = Path(path)
        with wrap_disk_errors(path, NOT_STARTED):
            refuse_used(path)
            path.mkdir(parents=True, exist_ok=True)
            lock = FolderLock(path)
            try:
                refuse_used(path)  # again: another process may have created a run before the lock
                write_atomic(path / "config.toml", config_toml.encode())
                return cls(path, lock)._prepare()
            except BaseException:
                lock.release()
                raise

    @classmethod
    def open(cls, path: Path | str, *, writing: bool = False) -> Self:
        """Open the folder of an existing run for reading, or lock it to continue the run."""
        path = Path(path)
        check_run_folder(path)
        if not writing:
            return cls(path, None)
        with wrap_disk_errors(path, partial(advise_resume, path)):
            lock = FolderLock(path)
            try:
                return cls(path, lock)._prepare()
            except BaseException:
                lock.release()
                raise

    def _prepare(self) -> Self:
        for folder in (self.path, self.trajectories, self.path / SOURCES, self.path / IMAGES_FOLDER):
            remove_leftovers(folder)
        self.checkpoints.mkdir(exist_ok=True)
        self.trajectories.mkdir(exist_ok=True)
        for file in (self.metrics_path, self.alarms_path, self.spans_path, self.index_path):
            drop_partial_line(file)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock. Reading still works."""
        if self._lock is not None:
            self._lock.release()

    def remove_if_unused(self) -> None:
        """Remove the folder if no step was recorded, so that a failed start does not occupy its name.

        It stays if it has a checkpoint, a step or a foreign file, and if a write failed: its error says how to resume
        the run.
        """
        own_files = {"config.toml", METRICS_FILE, ALARMS_FILE, SPANS_FILE, "report.html", JUDGES_FILE}
        own_files |= {PROVENANCE, LOCK_NAME} | {f"{CALLS_FILE}{ending}" for ending in ("", "-wal", "-shm")}
        own_folders = {IMAGES_FOLDER, "base", "checkpoints", "trajectories", "trackers", "past", REPLAY_FOLDER, SOURCES}
        own_names = own_files | own_folders
        has_foreign = any(file.name not in own_names and not is_leftover(file) for file in self.path.glob("*"))
        if has_foreign or self._write_failed or self._holds_steps():
            return
        shutil.rmtree(self.path, ignore_errors=True)

    def _holds_steps(self) -> bool:
        written = any(self.checkpoints.glob("*")) or any(self.trajectories.glob("step_*"))
        return written or any(record.step > 0 for record in self.read_records())

    @property
    def finished(self) -> bool:
        """Whether all steps are done. A run that its time limit stopped has a summary too, and can be resumed."""
        return is_finished(self.path)

    def trajectories_path(self, step: int, evaluation: str | None = None) -> Path:
        """Return the file of a step's trajectories, or of an evaluation after that step."""
        name = "step" if evaluation is None else f"eval_{evaluation}"
        return self.trajectories / f"{name}_{step:06d}.jsonl"

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        if self._lock is None or not self._lock.held:
            raise RuntimeError(f"{self.path} is not locked: open it with writing=True")
        self._write_failed = True
        with wrap_disk_errors(path, partial(advise_resume, self.path)):
            yield
        self._write_failed = False

    def append_metrics(self, record: Record) -> None:
        """Append the row of a step, an evaluation, ... Non-finite numbers become null."""
        with self._writing(self.metrics_path):
            append_bytes(self.metrics_path, encode_row(replace_nonfinite(record.to_row())) + b"\n")
        for listener in self.listeners:
            listener(record)

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the rows of `metrics.jsonl` as they are in the file."""
        return _read_step_rows(self.metrics_path)

    def read_records(self) -> list[Record]:
        return read_records(self.read_metrics())

    def restore_metrics(self, copy: Path) -> list[Record]:
        """Put the rows of a copy that the metrics lack back into their place; return them."""
        lines, present = _read_step_lines(copy), _read_step_lines(self.metrics_path)
        saved, kept = {line for line, _ in lines}, {line for line, _ in present}
        lost = [row for line, row in lines if line not in kept]
        if lost:
            later = [line for line, _ in present if line not in saved]
            with self._writing(self.metrics_path):
                write_atomic(self.metrics_path, b"".join([line for line, _ in lines] + later))
        return read_records(lost)

    def append_alarm(self, step: int, text: str) -> None:
        with self._writing(self.alarms_path):
            append_bytes(self.alarms_path, encode_row({"step": step, "text": text}) + b"\n")

    def append_spans(self, step: int, spans: Sequence[Span]) -> None:
        """Append what each lane did up to the end of a step: lane, activity, start and end in seconds since 1970."""
        rows = [[span.lane, span.activity, round(span.start, 3), round(span.end, 3)] for span in spans]
        with self._writing(self.spans_path):
            append_bytes(self.spans_path, encode_row({"step": step, "spans": rows}) + b"\n")

    def read_alarms(self) -> list[dict[str, Any]]:
        return _read_step_rows(self.alarms_path)

    def write_trajectories(
        self,
        step: int,
        rows: Sequence[Mapping[str, Any]],
        name_token: Callable[[int], TokenName],
        evaluation: str | None = None,
    ) -> None:
        """Write the trajectories of a step or an evaluation (rows of `trajectory_to_row`), then their index lines.

        The metrics of an evaluation are appended afterwards: `discard_from` deletes the trajectories of one without.
        """
        path = self.trajectories_path(step, evaluation)
        if path.exists():
            raise RuntimeError(f"{path} is already written: call discard_from before running a step again")
        lines = [encode_row(row) for row in rows]
        with self._writing(path):
            self._token_names.add(rows, name_token)
            write_atomic(path, b"".join(line + b"\n" for line in lines), durable=False)
            append_bytes(
                self.index_path, b"".join(encode_row(entry) + b"\n" for entry in _index_entries(step, rows, lines))
            )

    def read_index(self, evaluation: str | None = None) -> list[dict[str, Any]]:
        """Return the index entries of the training steps, or of evaluations of this name."""
        return [entry for entry in _read_step_rows(self.index_path) if entry.get("evaluation") == evaluation]

    def read_trajectory(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row that an index entry points at, without reading the rest of its file."""
        path = self.trajectories_path(entry["step"], entry.get("evaluation"))
        try:
            with path.open("rb") as file:
                file.seek(entry["offset"])
                row = json.loads(file.read(entry["length"]))
        except (OSError, ValueError) as error:
            raise UserError(f"{path} does not match its index. Restore it from a copy of the run.") from error
        if not isinstance(row, dict):
            raise UserError(f"{path} does not match its index. Restore it from a copy of the run.")
        return row

    def discard_from(self, step: int) -> None:
        """Delete the rows and trajectories of `step` and later, including evaluations, so that it can run again.

        Trajectories of an earlier evaluation without metrics are deleted too: a kill came between the two.

        A kill in between does no harm: each file is replaced atomically, and the next resume repeats this.
        """
        with self._writing(self.path):
            _keep_rows(self.metrics_path, lambda row: row["step"] < step)
            _keep_rows(self.alarms_path, lambda row: row["step"] < step)
            _keep_rows(self.spans_path, lambda row: row["step"] < step)
            evaluated = {(record.name, record.step) for record in select(self.read_records(), EvaluationRecord)}
            _keep_rows(
                self.index_path,
                lambda row: (
                    row["step"] < step and ("evaluation" not in row or (row["evaluation"], row["step"]) in evaluated)
                ),
            )
            for path in self.trajectories.glob("step_[0-9]*"):  # images too
                if int(path.stem.split("_")[1]) >= step:
                    path.unlink()
            kept = {self.trajectories_path(number, name) for name, number in evaluated}
            for path in self.trajectories.glob("eval_*.jsonl"):
                if path not in kept:
                    path.unlink()
            for path in self.trajectories.glob(".*.part"):
                path.unlink()

    def discard_results(self) -> None:
        """Delete the summary and the evaluation after training of a run that its time limit stopped."""
        with self._writing(self.path):
            self.summary_path.unlink(missing_ok=True)
            _keep_rows(self.metrics_path, lambda row: not is_evaluation(read_record(row), AFTER))
            _keep_rows(self.index_path, lambda row: row.get("evaluation") != AFTER)
            for path in self.trajectories.glob("eval_after_*.jsonl"):
                path.unlink()

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        self.write_text("summary.json", json.dumps(replace_nonfinite(summary), indent=2, allow_nan=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a small file of the run atomically, such as `curve.svg`."""
        with self._writing(self.path / name):
            write_atomic(self.path / name, text.encode())


def is_finished(path: Path) -> bool:
    """Return whether a run's summary exists and does not say that it was stopped."""
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and summary.get("finished") is not False


def refuse_used(path: Path) -> None:
    """Raise UserError if a new run cannot have this folder."""
    if not path.exists():
        return
    if not path.is_dir():
        raise UserError(f"{path} is a file, not a folder. Choose another record.name.")
    if (path / "config.toml").exists():
        if is_finished(path):
            raise UserError(f"{path} already contains a finished run. Choose another record.name.")
        raise UserError(
            f"{path} already contains a run. Continue it with `{spell_resume(path)}`, or choose another record.name."
        )
    if any(file.name != LOCK_NAME and not is_leftover(file) for file in path.iterdir()):
        raise UserError(f"{path} exists and is not empty. Choose another record.name.")


def _read_step_rows(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in _read_step_lines(path)]


def _read_step_lines(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    lines = read_jsonl(path)
    for number, (_, row) in enumerate(lines, start=1):
        if not isinstance(row.get("step"), int):
            raise UserError(f"{path} line {number} has no step. Restore the file, or delete that line.")
    return lines


def _keep_rows(path: Path, condition: Callable[[Mapping[str, Any]], bool]) -> None:
    if path.exists():
        write_atomic(path, b"".join(line for line, row in _read_step_lines(path) if condition(row)))


def _index_entries(step: int, rows: Sequence[Mapping[str, Any]], lines: Sequence[bytes]) -> Iterator[Mapping[str, Any]]:
    offset = 0
    for row, line in zip(rows, lines, strict=True):
        yield {
            "step": step,
            **({"evaluation": row["evaluation"]} if "evaluation" in row else {}),
            "group": row["group"],
            "member": row["member"],
            "environment": row["task"]["env"],
            "seed": row["task"]["seed"],
            "status": row["status"],
            "reward": row["reward"],
            "tokens": row["tokens"],
            "turns": len(row["turns"]),
            "offset": offset,
            "length": len(line),
        }
        offset += len(line) + 1
