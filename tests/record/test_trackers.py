import importlib.util
import json
import math
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from turnwise.core.errors import UserError
from turnwise.record import trackers
from turnwise.record.rows import EvaluationRecord, OtherRecord, read_records
from turnwise.record.trackers import Trackers, check_trackers

CONFIG = {"algo": {"advantage": "gae"}, "train": {"steps": 5}}
ROWS = [
    {"step": 0, "eval/name": "before", "eval/success": 0.125, "nonfinite": ["x"]},
    {"step": 1, "rollout/success": 0.25, "train/kl": None, "train/entropy": math.nan, "flag": True},
    {"step": 2, "rollout/success": 0.5},
]
LATER = [{"step": 2, "rollout/success": 0.625}, {"step": 3, "rollout/success": 0.75}]


OWN_VARIABLES = ("WANDB_", "TRACKIO_")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(OWN_VARIABLES)]:
        monkeypatch.delenv(name)


def needs(package: str, optional_part: Any) -> None:
    if importlib.util.find_spec(package) is None:
        optional_part(f"{package} is not installed: pip install {package}")


def track(name: str, folder: Path, rows: list[dict[str, Any]], resumed_after: int | None = None) -> list[str]:
    """Log the rows and return the warnings."""
    warnings: list[str] = []
    sink = Trackers(
        [name], config=CONFIG, name="lake", folder=folder, warn=warnings.append, resumed_after=resumed_after
    )
    for record in read_records(rows):
        sink.log(record)
    sink.close()
    return warnings


PROGRAM = """
import json, sys, time
from pathlib import Path
from turnwise.record.rows import read_records
from turnwise.record.trackers import Trackers
folder, names, config, parts = Path(sys.argv[1]), *map(json.loads, sys.argv[2:])
for rows, resumed in parts:
    if resumed and "wandb" in names:
        time.sleep(1)  # it names folders by the second
    sink = Trackers(names, config=config, name="lake", folder=folder, warn=print, resumed_after=resumed)
    for record in read_records(rows):
        sink.log(record)
    sink.close()
"""


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Log a run and its resumption with W&B and trackio in a separate process, which prints nothing."""
    folder = tmp_path_factory.mktemp("tracked")
    names = [name for name in ("wandb", "trackio") if importlib.util.find_spec(name)]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(OWN_VARIABLES)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), *map(json.dumps, (names, CONFIG, ((ROWS, None), (LATER, 1))))],
        env={**variables, "TRACKIO_DIR": str(folder / "trackio"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return folder


def test_tensorboard_logs_every_number_and_resumes(tmp_path: Path, optional_part: Any) -> None:
    needs("tensorboard", optional_part)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert track("tensorboard", tmp_path, ROWS) == []
    assert track("tensorboard", tmp_path, LATER, resumed_after=1) == []
    found = EventAccumulator(str(tmp_path / "trackers/tensorboard/lake")).Reload()
    assert set(found.Tags()["scalars"]) == {"eval/success", "rollout/success"}
    success = [(event.step, event.value) for event in found.Scalars("rollout/success")]
    assert success == [(1, 0.25), (2, 0.625), (3, 0.75)]  # repeated steps are shown once
    assert [(event.step, event.value) for event in found.Scalars("eval/success")] == [(0, 0.125)]
    assert "advantage" in str(found.Tensors("config/text_summary")[0].tensor_proto.string_val[0])


def test_wandb_is_offline_and_keeps_its_id_on_resume(tracked: Path, optional_part: Any) -> None:
    needs("wandb", optional_part)
    files = sorted((tracked / "trackers/wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2 and len({file.name for file in files}) == 1
    read = [wandb_records(file) for file in files]
    rows = [row for records in read for row in records["rows"]]
    assert [(row["step"], row.get("rollout/success")) for row in rows] == [
        (0, None), (1, 0.25), (2, 0.5), (2, 0.625), (3, 0.75)
    ]  # fmt: skip
    assert {key for row in rows for key in row if not key.startswith("_")} == {
        "step", "eval/success", "rollout/success"
    }  # fmt: skip
    assert read[0]["run"] == ("turnwise", "lake") == read[1]["run"]
    assert read[0]["config"]["algo"] == {"advantage": "gae"}


def wandb_records(path: Path) -> dict[str, Any]:
    """Read a W&B file: rows, project and name, settings."""
    from wandb.proto import wandb_internal_pb2

    found: dict[str, Any] = {"rows": [], "config": {}}
    for data in logged_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            found["rows"].append({"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items})
        elif record.WhichOneof("record_type") == "run":
            found["run"] = (record.run.project, record.run.display_name)
            updates = record.run.config.update
            found["config"] |= {each.key: json.loads(each.value_json) for each in updates}
    return found


def logged_records(data: bytes) -> Iterator[bytes]:
    """Read LevelDB's log format after a header of 7 bytes: blocks of 32 KiB of (checksum, length, type, data)."""
    place, whole = 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # all of it, or its last piece
            yield whole
            whole = b""


def test_trackio_logs_every_number_and_resumes(tracked: Path, optional_part: Any) -> None:
    needs("trackio", optional_part)
    with sqlite3.connect(tracked / "trackio/turnwise.db") as base:
        found = base.execute("select run_name, run_id, step, metrics from metrics order by id").fetchall()
    assert {name for name, *_ in found} == {"lake"} and len({run for _, run, *_ in found}) == 1
    logged = [(step, json.loads(metrics)) for *_, step, metrics in found]
    assert logged == [
        (0, {"eval/success": 0.125}),
        (1, {"rollout/success": 0.25}),
        (2, {"rollout/success": 0.5}),
        (2, {"rollout/success": 0.625}),
        (3, {"rollout/success": 0.75}),
    ]


class Fragile:
    """A tracker that fails at its second row."""

    made: list["Fragile"]

    def __init__(self, config: Mapping[str, Any], name: str, folder: Path, resumed_after: int | None) -> None:
        self.logged: list[int] = []
        self.closed = False
        type(self).made.append(self)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        if self.logged:
            raise ConnectionError("the server\nis gone")
        self.logged.append(step)

    def close(self) -> None:
        self.closed = True


class Sturdy(Fragile):
    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self.logged.append(step)


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    Fragile.made = []
    Sturdy.made = []
    monkeypatch.setattr(trackers, "TRACKERS", {"json": Fragile, "csv": Sturdy})  # names of packages that are there


@pytest.mark.usefixtures("stand_ins")
def test_trackers_warn_once_and_drop_a_failing_tracker(tmp_path: Path) -> None:
    warnings: list[str] = []
    sink = Trackers(["json", "csv"], config={}, name="run", folder=tmp_path, warn=warnings.append)
    for step in range(4):
        sink.log(OtherRecord(step=step, row={"step": step, "x": 1.0}))
    sink.close()
    assert warnings == ["json failed to log (the server is gone) and is switched off; the run folder has all metrics"]
    assert Fragile.made[0].logged == [0] and not Fragile.made[0].closed
    assert Sturdy.made[0].logged == [0, 1, 2, 3] and Sturdy.made[0].closed


@pytest.mark.usefixtures("stand_ins")
def test_trackers_skip_rows_without_numbers(tmp_path: Path) -> None:
    sink = Trackers(["csv"], config={}, name="run", folder=tmp_path, warn=print)
    sink.log(EvaluationRecord(step=3, name="x", metrics={}))
    assert Sturdy.made[0].logged == []


def test_trackers_raise_if_one_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> None:
        raise ValueError("no key")

    Sturdy.made = []
    monkeypatch.setattr(trackers, "TRACKERS", {"csv": Sturdy, "json": refuses})
    with pytest.raises(UserError, match=r"Cannot start the tracker json \(no key\)"):
        Trackers(["csv", "json"], config={}, name="run", folder=tmp_path, warn=print)
    assert Sturdy.made[0].closed


def test_check_trackers_refuses_unknown_and_missing_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r'Unknown tracker "wandbb" in record\.trackers: did you mean "wandb"'):
        check_trackers(["wandbb"])
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"record\.trackers: trackio is not installed. Run pip install trackio"):
        check_trackers(["trackio"])
    check_trackers([])


def test_trackers_without_names_create_no_folder(tmp_path: Path) -> None:
    Trackers([], config={}, name="run", folder=tmp_path, warn=print).close()
    assert list(tmp_path.iterdir()) == []
