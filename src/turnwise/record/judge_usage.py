"""`judges.jsonl`: what a run's judges have cost."""

from functools import partial
from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.files.disk import append_bytes, wrap_disk_errors
from turnwise.record.jsonl import drop_partial_line, encode_row, read_jsonl
from turnwise.record.resume_command import advise_resume

JUDGES_FILE = "judges.jsonl"


class JudgeUsage:
    """Calls and tokens of a run's judges, on disk before each request is sent, so that a kill loses none of them.

    `judges.jsonl` is only appended to. Before a request: {"judge": hash of its settings, "calls": 1, "tokens": the most
    it may cost}. After it: {"judge": ..., "calls": 0, "tokens": minus what it did not use}.
    """

    def __init__(self, folder: Path) -> None:
        """`folder`: the locked run folder."""
        self._path = folder / JUDGES_FILE
        self._advise = partial(advise_resume, folder)

    def read(self) -> dict[str, dict[str, float]]:
        """Return the calls and tokens of each judge. A request that a kill interrupted counts with its maximum."""
        with wrap_disk_errors(self._path, self._advise):
            drop_partial_line(self._path)
        usage: dict[str, dict[str, float]] = {}
        for number, (_, row) in enumerate(read_jsonl(self._path), start=1):
            match row:
                case {"judge": str(judge), "calls": int(calls), "tokens": int(tokens)}:
                    total = usage.setdefault(judge, {"calls": 0, "tokens": 0})
                    usage[judge] = {"calls": total["calls"] + calls, "tokens": total["tokens"] + tokens}
                case _:
                    raise UserError(f"{self._path} line {number} is not an entry of a judge. Restore or delete it.")
        return usage

    def add(self, judge: str, calls: int, tokens: int) -> None:
        with wrap_disk_errors(self._path, self._advise):
            append_bytes(self._path, encode_row({"judge": judge, "calls": calls, "tokens": tokens}) + b"\n")
