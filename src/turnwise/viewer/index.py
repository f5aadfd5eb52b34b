"""Which trajectories a run or an evaluation holds, and where each stands. Trajectories themselves are not kept."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.record.jsonl_follower import LineBlock, LineFollower
from turnwise.viewer.columns import GrowingTable, Table
from turnwise.viewer.lines import read_row
from turnwise.viewer.root import NotThere, Root

FOLDER, INDEX = "trajectories", "index.jsonl"
MAX_INDEX_LINE = 1 << 20
MAX_TRAJECTORY = 32 << 20
"""Bytes of a trajectory's line; a longer one is not read. About 300,000 tokens."""
TURNS, TURN = b',"turns":[', b'"context_ids":'


class RunIndex:
    """`index.jsonl`, read as it grows."""

    models: tuple[str, ...] = ()

    def __init__(self, root: Root, folder: Path) -> None:
        self._root, self._folder = root, folder
        self._follower = LineFollower(MAX_INDEX_LINE)
        self._rows = GrowingTable()

    def refresh(self) -> Table:
        """Not for two threads at once."""
        try:
            with self._root.open(self._folder, FOLDER, INDEX) as file:
                if self._follower.is_replaced(file):
                    self._forget()
                for block in self._follower.read_blocks(file):
                    self._add(block)
        except NotThere:
            self._forget()
        self._rows.broken += self._follower.too_long
        self._follower.too_long = 0
        return self._rows.table()

    def _forget(self) -> None:
        self._follower.restart()
        self._rows = GrowingTable()

    def _add(self, block: LineBlock) -> None:
        found = [read_row(line) for line in block.lines]
        numbered = [
            {**row, "model": None, "number": number}
            for number, row in enumerate(found, start=block.number)
            if row is not None
        ]
        self._rows.add(numbered)
        self._rows.broken += len(found) - len(numbered)

    def place(self, row: Mapping[str, Any]) -> str:
        """The name of the file in which a row's trajectory stands."""
        return f"step_{row['step']:06d}.jsonl"


class EvaluationIndex:
    """An evaluation has no index: the episodes' own lines are read once, as they come, for what an index would say.

    A row's number is its line * models + model, so that it stays the same while the files grow.
    """

    def __init__(self, root: Root, folder: Path, models: tuple[str, ...]) -> None:
        self._root, self._folder, self.models = root, folder, models
        self._followers = {model: LineFollower(MAX_TRAJECTORY) for model in models}
        self._rows = GrowingTable()

    def refresh(self) -> Table:
        """Not for two threads at once. A file that was cut back or written anew: all are read again."""
        if any(self._changed(model) for model in self.models):
            self._rows = GrowingTable()
            for follower in self._followers.values():
                follower.restart()
        for model, follower in self._followers.items():
            try:
                with self._root.open(self._folder, FOLDER, f"{model}.jsonl") as file:
                    for block in follower.read_blocks(file):
                        self._add(block, model)
            except NotThere:
                continue  # no episode yet
            self._rows.broken += follower.too_long
            follower.too_long = 0
        return self._rows.table()

    def _changed(self, model: str) -> bool:
        follower = self._followers[model]
        try:
            with self._root.open(self._folder, FOLDER, f"{model}.jsonl") as file:
                return follower.is_replaced(file)
        except NotThere:
            return follower.has_read

    def _add(self, block: LineBlock, model: str) -> None:
        first, step = block.number * len(self.models) + self.models.index(model), len(self.models)
        found = [episode_entry(line, offset) for line, offset in zip(block.lines, block.offsets(), strict=True)]
        numbered = [
            {**row, "model": model, "number": first + place * step}
            for place, row in enumerate(found)
            if row is not None
        ]
        self._rows.add(numbered)
        self._rows.broken += len(found) - len(numbered)

    def place(self, row: Mapping[str, Any]) -> str:
        """The name of the file in which a row's trajectory stands."""
        return f"{row['model']}.jsonl"


def episode_entry(line: bytes, offset: int) -> dict[str, Any] | None:
    """What an index would say of a trajectory's line.

    What is asked for stands before the turns, which are nearly all of the line: they are not parsed, only counted.
    Where that does not work out, as when a parameter has their name, the whole line is parsed.
    """
    head, found, turns = line.partition(TURNS)
    row = read_row(head + b"}") if found and line.endswith(b"}") else None
    count = turns.count(TURN)
    if row is None:
        row = read_row(line)
        if row is None or not isinstance(row.get("turns"), list):
            return None
        count = len(row["turns"])
    task = row.get("task")
    if not isinstance(task, dict):
        return None
    return {
        **{name: row.get(name) for name in ("step", "group", "member", "status", "reward", "tokens")},
        "environment": task.get("env"),
        "seed": task.get("seed"),
        "turns": count,
        "offset": offset,
        "length": len(line),
    }
