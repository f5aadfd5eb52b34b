"""Tasks that two runs or evaluations share."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from turnwise.viewer.columns import Table

MAX_EPISODES = 64
"""Of one task and side."""
SHOWN = ("number", "model", "reward", "status", "step")

Task = tuple[str, int]
Positions = dict[Task, list[int]]


def common(one: Table, other: Table, *, offset: int, limit: int) -> dict[str, Any]:
    """Equal environment and seed; in the order of environments and seeds."""
    mine, others = positions_of_tasks(one, other), positions_of_tasks(other, one)
    shared = sorted(mine.keys() & others.keys())
    tasks = [
        {
            "environment": task[0],
            "seed": task[1],
            "one": episodes(one, mine[task]),
            "other": episodes(other, others[task]),
        }
        for task in shared[offset : offset + limit]
    ]
    return {"tasks": tasks, "total": len(shared)}


def positions_of_tasks(table: Table, other: Table) -> Positions:
    """Rows by their task; only rows whose seed the other has as well, which is fast to tell of all at once."""
    seeds, codes = table.columns["seed"], table.columns["environment"]
    kept = np.flatnonzero(np.isin(seeds, other.columns["seed"]))
    found: Positions = {}
    for position, code, seed in zip(kept.tolist(), codes[kept].tolist(), seeds[kept].tolist(), strict=True):
        found.setdefault((table.names["environment"][code], seed), []).append(position)
    return found


def episodes(table: Table, positions: list[int]) -> list[Mapping[str, Any]]:
    return [table.row(position, SHOWN) for position in positions[:MAX_EPISODES]]
