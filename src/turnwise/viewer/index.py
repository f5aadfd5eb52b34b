"""Indexes of a run's or an evaluation's trajectories and token texts, followed as the files grow.

Only positions in the files are kept in memory, not the trajectories or texts themselves.
"""

from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.record.jsonl_follower import LineBlock, LineFollower
from turnwise.viewer.followed_file import FollowedFile
from turnwise.viewer.json_io import read_row
from turnwise.viewer.table import TableBuilder, TrajectoryTable
from turnwise.viewer.viewed_folder import FileNotServed, ViewedFolder

FOLDER, INDEX, TOKENS = "trajectories", "index.jsonl", "tokens.jsonl"
MAX_INDEX_LINE = 1 << 20
MAX_TRAJECTORY = 32 << 20
"""Bytes of a trajectory's line, about 300,000 tokens; longer lines are not read."""
MAX_TOKEN_LINE = 1 << 16
MAX_TOKENS = 1_000_000
MAX_TOKEN_ID = 1 << 40
TURNS_KEY, TURN_KEY = b',"turns":[', b'"context_ids":'


class RunIndex(FollowedFile):
    """Follows a run's `index.jsonl`. Not thread-safe."""

    models: tuple[str, ...] = ()

    def __init__(self, root: ViewedFolder, folder: Path) -> None:
        super().__init__(root, folder, (FOLDER, INDEX), MAX_INDEX_LINE)

    def refresh(self) -> TrajectoryTable:
        self._read_new_lines()
        self._rows.broken += self._follower.too_long
        self._follower.too_long = 0
        return self._rows.table()

    def _clear(self) -> None:
        self._rows = TableBuilder()

    def _add(self, block: LineBlock) -> None:
        rows = [read_row(line) for line in block.lines]
        numbered = [
            {**row, "model": None, "number": number}
            for number, row in enumerate(rows, start=block.number)
            if row is not None
        ]
        self._rows.add(numbered)
        self._rows.broken += len(rows) - len(numbered)

    def file_name(self, row: Mapping[str, Any]) -> str:
        """Return the name of the file that contains a row's trajectory."""
        name = f"eval_{row['evaluation']}" if "evaluation" in row else "step"
        return f"{name}_{row['step']:06d}.jsonl"


class EvaluationIndex:
    """Follows the trajectory files of an evaluation, which has no index file, and indexes them. Not thread-safe.

    A row's number is line * number of models + model, so that it does not change while the files grow.
    """

    def __init__(self, root: ViewedFolder, folder: Path, models: tuple[str, ...]) -> None:
        self._root, self._folder, self.models = root, folder, models
        self._followers = {model: LineFollower(MAX_TRAJECTORY) for model in models}
        self._rows = TableBuilder()

    def refresh(self) -> TrajectoryTable:
        """Read new lines; if a file was truncated or replaced, read all files again."""
        if any(self._is_replaced(model) for model in self.models):
            self._rows = TableBuilder()
            for follower in self._followers.values():
                follower.restart()
        for model, follower in self._followers.items():
            try:
                with self._root.open(self._folder, FOLDER, f"{model}.jsonl") as file:
                    for block in follower.read_blocks(file):
                        self._add(block, model)
            except FileNotServed:
                continue  # no episode yet
            self._rows.broken += follower.too_long
            follower.too_long = 0
        return self._rows.table()

    def _is_replaced(self, model: str) -> bool:
        follower = self._followers[model]
        try:
            with self._root.open(self._folder, FOLDER, f"{model}.jsonl") as file:
                return follower.is_replaced(file)
        except FileNotServed:
            return follower.has_read

    def _add(self, block: LineBlock, model: str) -> None:
        first, stride = block.number * len(self.models) + self.models.index(model), len(self.models)
        rows = [index_trajectory(line, offset) for line, offset in zip(block.lines, block.offsets(), strict=True)]
        numbered = [
            {**row, "model": model, "number": first + position * stride}
            for position, row in enumerate(rows)
            if row is not None
        ]
        self._rows.add(numbered)
        self._rows.broken += len(rows) - len(numbered)

    def file_name(self, row: Mapping[str, Any]) -> str:
        """Return the name of the file that contains a row's trajectory."""
        return f"{row['model']}.jsonl"


def index_trajectory(line: bytes, offset: int) -> dict[str, Any] | None:
    """Return the index row of a trajectory's line, or None if it is broken.

    All needed fields come before the turns, which make up nearly all of the line, so the turns are counted and not
    parsed. If that fails, e.g. because a parameter is called "turns", the whole line is parsed.
    """
    head, separator, turns = line.partition(TURNS_KEY)
    row = read_row(head + b"}") if separator and line.endswith(b"}") else None
    count = turns.count(TURN_KEY)
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


class TokenTexts(FollowedFile):
    """Follows a file of token texts, keeping only the offset of each. Old runs have no such file. Not thread-safe."""

    def __init__(self, root: ViewedFolder, folder: Path, model: str | None) -> None:
        """`model`: a model of an evaluation, which may have its own tokens; None for a run."""
        file = (FOLDER, TOKENS) if model is None else ("models", f"{model}.{TOKENS}")
        super().__init__(root, folder, file, MAX_TOKEN_LINE)

    def refresh(self) -> None:
        self._read_new_lines()

    def _clear(self) -> None:
        self._ids, self._offsets = array("q"), array("q")

    def _add(self, block: LineBlock) -> None:
        for line, offset in zip(block.lines, block.offsets(), strict=True):
            row = read_row(line)
            token = None if row is None else row.get("id")
            if type(token) is int and 0 <= token < MAX_TOKEN_ID and len(self._ids) < MAX_TOKENS:
                self._ids.append(token)
                self._offsets.append(offset)

    def look_up(self, tokens: Iterable[int]) -> dict[str, dict[str, Any]]:
        """Return text and special flag of the known ids among `tokens`, keyed by the id as text."""
        ids = np.array(self._ids, np.int64)
        offsets = np.array(self._offsets, np.int64)[np.isin(ids, np.fromiter(tokens, np.int64))]
        if not len(offsets):
            return {}
        texts: dict[str, dict[str, Any]] = {}
        try:
            with self._root.open(self._folder, *self._file) as file:
                for offset in offsets.tolist():
                    file.seek(offset)
                    row = read_row(file.readline(MAX_TOKEN_LINE + 1).removesuffix(b"\n"))
                    if row is not None and isinstance(row.get("text"), str):
                        texts[str(row["id"])] = {"text": row["text"], "special": row.get("special") is True}
        except FileNotServed:
            return {}
        return texts
