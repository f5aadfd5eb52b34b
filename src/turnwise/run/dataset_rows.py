"""Rows of exported datasets: those of a run, with columns that have one type each."""

import json
from collections.abc import Mapping
from typing import Any

from turnwise.core.errors import UserError

JSON_COLUMNS = ("rewards", "timings", "start")
JSON_TURN_COLUMNS = ("spans", "message", "info", "picture")
"""Columns of an exported dataset that are JSON text: Arrow needs one type per column, and these have none."""


def to_dataset_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a run's row of a trajectory to that of an exported dataset, whose columns have one type each."""
    return {
        **row,
        **{name: json.dumps(row[name]) for name in JSON_COLUMNS},
        "success": row["status"] == "succeeded",
        "task": {**row["task"], "params": json.dumps(row["task"]["params"])},
        "turns": [
            {
                "action": turn["message"]["content"],
                **turn,
                **{name: json.dumps(turn[name]) for name in JSON_TURN_COLUMNS},
                "policy_version": _list_versions(turn),
            }
            for turn in row["turns"]
        ],
    }


def _list_versions(turn: Mapping[str, Any]) -> list[int] | None:
    version = turn["policy_version"]
    return [version] * len(turn["action_ids"]) if isinstance(version, int) else version


def from_dataset_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the row of a dataset to that of a run; one of a run stays as it is. Raise UserError if it is neither."""
    try:
        return {
            **row,
            **{name: _parse_text(row[name]) for name in JSON_COLUMNS if name in row},
            "task": {name: _parse_text(value) if name == "params" else value for name, value in row["task"].items()},
            "turns": [
                {
                    name: _parse_text(value) if name in JSON_TURN_COLUMNS else value
                    for name, value in turn.items()
                    if value is not None or name != "images"  # Arrow has a null where a turn has no such column
                }
                for turn in row["turns"]
            ],
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"Not a trajectory ({error!r}). Restore the file from a copy of the run.") from error


def _parse_text(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value
