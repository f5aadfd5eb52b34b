"""The watch's warnings of a run."""

from pathlib import Path
from typing import Any

from turnwise.viewer.lines import read_row
from turnwise.viewer.root import NotThere, Root

ALARMS = "alarms.jsonl"
MAX_BYTES = 4 << 20
MAX_TEXT = 2000


def read_alarms(root: Root, folder: Path) -> dict[str, Any]:
    """The last of them, where there are very many; a half-written one comes later."""
    try:
        with root.open(folder, ALARMS) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MAX_BYTES))
            data = file.read(MAX_BYTES)
    except NotThere:
        return {"alarms": [], "broken": 0}
    lines = data.split(b"\n")[1 if size > MAX_BYTES else 0 : -1]
    rows = [read_row(line) for line in lines]
    alarms = [
        {"step": row["step"], "text": row["text"][:MAX_TEXT]}
        for row in rows
        if row is not None and isinstance(row.get("step"), int) and isinstance(row.get("text"), str)
    ]
    return {"alarms": alarms, "broken": len(rows) - len(alarms)}
