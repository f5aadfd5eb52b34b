"""What a run's judges have spent, on disk before a request is sent: a kill forgets none of it.

judges.jsonl   {"judge": a hash of its settings, "calls": 1, "tokens": the most it may cost} before a request, and
               {"judge": ..., "calls": 0, "tokens": what it cost less} after it; only ever added to
"""

from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.record.disk import append, disk_errors
from turnwise.record.jsonl import drop_half_line, encode, read_lines

FILE = "judges.jsonl"


class JudgeSpending:
    def __init__(self, folder: Path) -> None:
        """`folder`: a run's, which is locked."""
        self._path = folder / FILE
        self._then = f"continue with --resume {folder} (all up to its last checkpoint is safe)"

    def read(self) -> dict[str, dict[str, float]]:
        """Calls and tokens of each judge. A request that was under way at a kill counts with the most it may cost."""
        with disk_errors(self._path, self._then):
            drop_half_line(self._path)
        spent: dict[str, dict[str, float]] = {}
        for number, (_, row) in enumerate(read_lines(self._path), start=1):
            match row:
                case {"judge": str(judge), "calls": int(calls), "tokens": int(tokens)}:
                    before = spent.setdefault(judge, {"calls": 0, "tokens": 0})
                    spent[judge] = {"calls": before["calls"] + calls, "tokens": before["tokens"] + tokens}
                case _:
                    raise UserError(f"{self._path} line {number} says nothing of a judge: restore it, or delete it")
        return spent

    def add(self, judge: str, calls: int, tokens: int) -> None:
        with disk_errors(self._path, self._then):
            append(self._path, encode({"judge": judge, "calls": calls, "tokens": tokens}) + b"\n")
