"""The page of a run: what it changed against its parent, its checkpoints, its alarms with advice, and its cost."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from turnwise.core.errors import UserError
from turnwise.files.run_folders import CONFIG_FILE
from turnwise.record.steps import finite_number
from turnwise.report.alarm_advice import advise
from turnwise.viewer.json_io import read_row
from turnwise.viewer.metrics import read_alarms
from turnwise.viewer.settings import flatten, get_setting, is_evaluation, read_toml
from turnwise.viewer.viewed_folder import ViewedFolder

CHECKPOINTS = "checkpoints"
MAX_CHECKPOINTS = 100
MAX_FILES = 1000
"""Files of a checkpoint whose sizes are added up."""
MAX_ALARMS = 200
MAX_STATE = 4 << 20
OWN = "record."
"""Settings of the run folder, which always differ between a run and its parent."""


def describe_run(root: ViewedFolder, folder: Path) -> dict[str, Any]:
    """Return what the page shows besides the run's row, its curves and its explanation."""
    if is_evaluation(folder):
        return {"parent": None, "checkpoints": [], "alarms": []}
    alarms = read_alarms(root, folder)["alarms"]
    return {
        "parent": describe_parent(root, folder),
        "checkpoints": list_checkpoints(root, folder),
        "alarms": [{**alarm, "advice": advise(alarm["text"])} for alarm in alarms[-MAX_ALARMS:]],
    }


def describe_parent(root: ViewedFolder, folder: Path) -> dict[str, Any] | None:
    """Return the run that this one took its settings from, and the settings that differ; None if it has no parent.

    The id is None for a parent that is not in the viewed folder, whose settings are then unknown.
    """
    settings = _read_settings(root, folder)
    parent = get_setting(settings, "record", "parent")
    if not isinstance(parent, str):
        return None
    parent_id = find_id(root, parent)
    if parent_id is None:
        return {"name": root.shorten_path(parent), "id": None, "changes": None}
    before = _read_settings(root, root.find_run(parent_id))
    return {"name": parent_id, "id": parent_id, "changes": compare_settings(before, settings)}


def find_id(root: ViewedFolder, path: str) -> str | None:
    """Return the id of the run in this folder, which may have been moved with the viewed folder; None if it is gone."""
    names = [root.shorten_path(path), PurePath(path).name]
    for name in dict.fromkeys(names):
        try:
            root.find_run(name)
        except UserError:
            continue
        return name
    return None


def compare_settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the settings that differ: name, value, and value of the parent; None where one lacks the setting."""
    one, other = dict(flatten(before)), dict(flatten(after))
    names = sorted(name for name in {*one, *other} if not name.startswith(OWN))
    return [
        {"name": name, "before": one.get(name), "after": other.get(name)}
        for name in names
        if one.get(name) != other.get(name)
    ]


def _read_settings(root: ViewedFolder, folder: Path) -> dict[str, Any]:
    try:
        return read_toml(root, folder, CONFIG_FILE)
    except UserError:  # the page shows the error where it shows all settings
        return {}


def list_checkpoints(root: ViewedFolder, folder: Path) -> list[dict[str, Any]]:
    """Return the checkpoints with step, size and time, the newest step first; the best one is named "best"."""
    checkpoints = []
    for path in root.list_folders(folder, CHECKPOINTS)[:MAX_CHECKPOINTS]:
        state = _read_state(root, folder, path.name)
        step = finite_number(state.get("step"))
        if step is None:  # being written, or damaged
            continue
        size, modified = measure_folder(path)
        checkpoints.append({"name": path.name, "step": int(step), "bytes": size, "modified": modified})
    return sorted(checkpoints, key=lambda checkpoint: (-checkpoint["step"], checkpoint["name"]))


def _read_state(root: ViewedFolder, folder: Path, name: str) -> Mapping[str, Any]:
    try:
        return read_row(root.read(folder, CHECKPOINTS, name, "state.json", limit=MAX_STATE)) or {}
    except UserError:
        return {}


def measure_folder(folder: Path) -> tuple[int, float]:
    """Return the bytes of a folder's files, those in its folders too, and the time of its last change."""
    size, modified, count = 0, 0.0, 0
    for parent, _, names in os.walk(folder):
        for name in names[: MAX_FILES - count]:
            count += 1
            try:
                status = os.lstat(f"{parent}/{name}")
            except OSError:  # deleted meanwhile
                continue
            if stat.S_ISREG(status.st_mode):
                size, modified = size + status.st_size, max(modified, status.st_mtime)
        if count >= MAX_FILES:
            break
    return size, modified
