"""Files of a replay buffer: parts of memory-mapped arrays with one line per trajectory. See `data/replay.py`."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.core.errors import UserError

Ids = NDArray[np.int64]
"""64 bits, since the ids of images need them."""
Logprobs = NDArray[np.float32]
ID_BYTES, LOGPROB_BYTES = 8, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A trajectory of the buffer without its turns."""

    step: int
    """Training step that added it."""
    source: str
    """Origin for messages, such as "demos.jsonl line 3"."""
    sampled: bool
    """False: its ids were rendered from text, and its log-probabilities are those of a reference, not of the author."""
    scored: bool
    """False: its reward is unknown."""
    group: int
    """Equal for trajectories of the same task, which start from the same state."""
    succeeded: bool
    total_reward: float
    turns: int
    tokens: int
    """Number of ids, sampled or not."""
    num_sampled: int
    digest: str
    part: int
    line: int
    """Position of its line in the part, and those of its arrays below."""
    first_id: int
    first_logprob: int


HEAD = (
    "step",
    "source",
    "sampled",
    "scored",
    "group",
    "succeeded",
    "total_reward",
    "turns",
    "tokens",
    "num_sampled",
    "digest",
)
"""Fields of an entry that are in its line; the others follow from the lines before it."""


class Part:
    """One folder of arrays and lines. `entries` are the trajectories whose lines are complete."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.number = folder, number
        self._lines, self._ids, self._logprobs = (
            folder / name for name in ("entries.jsonl", "ids.bin", "logprobs.bin")
        )
        self._maps: tuple[Ids, Logprobs] | None = None
        self._offsets: list[int] = [0]
        self.entries: list[Entry] = []
        self._recover()

    def _recover(self) -> None:
        """Read the complete lines, and cut off what follows them."""
        for path in (self._lines, self._ids, self._logprobs):
            path.touch()
        with self._lines.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._note(self._parse(line), len(line))
        self._cut()

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            row: dict[str, Any] = json.loads(line)
            return {name: row[name] for name in HEAD}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            number = len(self.entries) + 1
            raise UserError(f"{self._lines} line {number} is damaged. Delete {self.folder.parent}.") from error

    def _note(self, head: Mapping[str, Any], length: int) -> Entry:
        last = self.entries[-1] if self.entries else None
        entry = Entry(
            **{name: head[name] for name in HEAD},
            part=self.number,
            line=len(self.entries) + 1,
            first_id=0 if last is None else last.first_id + last.tokens,
            first_logprob=0 if last is None else last.first_logprob + last.num_sampled,
        )
        self.entries.append(entry)
        self._offsets.append(self._offsets[-1] + length)
        return entry

    def _cut(self) -> None:
        """Truncate the files to the entries. Shorter arrays than their lines say are damage, not a kill."""
        last = self.entries[-1] if self.entries else None
        ids = ID_BYTES * (last.first_id + last.tokens) if last else 0
        logprobs = LOGPROB_BYTES * (last.first_logprob + last.num_sampled) if last else 0
        self._maps = None
        for path, size in ((self._lines, self._offsets[-1]), (self._ids, ids), (self._logprobs, logprobs)):
            if path.stat().st_size < size:
                raise UserError(f"{path} is shorter than its entries say. Delete {self.folder.parent}.")
            os.truncate(path, size)

    def truncate(self, count: int) -> None:
        """Keep the first `count` entries. The lines are cut first: arrays without a line are harmless."""
        del self.entries[count:], self._offsets[count + 1 :]
        os.truncate(self._lines, self._offsets[-1])
        self._cut()

    def append(self, head: Mapping[str, Any], row: Mapping[str, Any], ids: Ids, logprobs: Logprobs) -> Entry:
        line = json.dumps({**head, "row": row}, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        for path, data in ((self._ids, ids.tobytes()), (self._logprobs, logprobs.tobytes()), (self._lines, line)):
            with path.open("ab", buffering=0) as file:
                while data:
                    data = data[file.write(data) :]
        self._maps = None
        return self._note(head, len(line))

    def arrays(self, entry: Entry) -> tuple[Ids, Logprobs]:
        """Return the entry's ids and log-probabilities, memory-mapped."""
        if self._maps is None:
            self._maps = np.memmap(self._ids, np.int64, "r"), np.memmap(self._logprobs, np.float32, "r")
        ids, logprobs = self._maps
        return (
            ids[entry.first_id : entry.first_id + entry.tokens],
            logprobs[entry.first_logprob : entry.first_logprob + entry.num_sampled],
        )

    def write_logprobs(self, entry: Entry, logprobs: Logprobs) -> None:
        with self._logprobs.open("r+b", buffering=0) as file:
            file.seek(LOGPROB_BYTES * entry.first_logprob)
            file.write(logprobs.tobytes())

    def read_line(self, entry: Entry) -> dict[str, Any]:
        start, end = self._offsets[entry.line - 1 : entry.line + 1]
        with self._lines.open("rb") as file:
            file.seek(start)
            try:
                row: dict[str, Any] = json.loads(file.read(end - start))
            except ValueError as error:
                raise UserError(f"{self._lines} line {entry.line} is damaged. Delete {self.folder.parent}.") from error
        return row


def part_numbers(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("part_")) for path in folder.glob("part_[0-9]*"))


def take_arrays(row: dict[str, Any]) -> tuple[Ids, Logprobs]:
    """Move the arrays out of a row: each turn keeps the numbers of its ids."""
    ids, logprobs = list[int](), list[float]()
    turns = []
    for turn in row["turns"]:
        ids += [*turn["context_ids"], *turn["action_ids"]]
        logprobs += [float(logprob) for logprob in turn["action_logprobs"]]
        counts = {"context_ids": len(turn["context_ids"]), "action_ids": len(turn["action_ids"])}
        turns.append({name: value for name, value in turn.items() if name != "action_logprobs"} | counts)
    row["turns"] = turns
    return np.array(ids, dtype=np.int64), np.array(logprobs, dtype=np.float32)


def put_arrays(row: dict[str, Any], ids: Ids, logprobs: Logprobs) -> None:
    """Move the arrays back into a row."""
    at = used = 0
    for turn in row["turns"]:
        context, action = turn["context_ids"], turn["action_ids"]
        turn["context_ids"] = ids[at : at + context].tolist()
        turn["action_ids"] = ids[at + context : at + context + action].tolist()
        turn["action_logprobs"] = logprobs[used : used + action].tolist()
        at, used = at + context + action, used + action


def hash_trajectory(row: Mapping[str, Any], ids: Ids, logprobs: Logprobs | None) -> str:
    """Hash of everything that the author wrote. Log-probabilities of a reference are not part of it."""
    digest = hashlib.blake2b(json.dumps(row, sort_keys=True).encode(), digest_size=16)
    digest.update(ids.tobytes())
    if logprobs is not None:
        digest.update(logprobs.tobytes())
    return digest.hexdigest()
