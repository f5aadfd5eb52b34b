"""The list of a run's trajectories, as it is asked for."""

from typing import Any

import numpy as np

from turnwise.viewer.query import Wanted, select
from turnwise.viewer.search import search
from turnwise.viewer.store import RunFiles


def list_trajectories(
    files: RunFiles, wanted: Wanted, *, sort: str, text: str | None, offset: int, limit: int, cursor: int
) -> dict[str, Any]:
    """A page of the rows that fit. With `text`, those that hold it from `cursor` on, and how far was searched."""
    table = files.table()
    fitting = select(table, wanted, sort)
    if text is None:
        shown = fitting[offset : offset + limit]
        found = {"total": len(fitting), "rows": [table.row(int(position)) for position in shown]}
    else:
        with files.reading() as read:
            found = search(table, fitting, text, read, cursor=cursor, limit=limit)
    return {
        **found,
        "steps": np.unique(table.columns["step"]).tolist(),
        "environments": table.used("environment"),
        "statuses": table.used("status"),
        "models": table.used("model"),
        "broken": table.broken,
    }
