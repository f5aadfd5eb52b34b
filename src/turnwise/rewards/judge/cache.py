"""Answers of judges on disk: one JSON object a line, only ever added to, by any number of processes."""

import fcntl
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.core.messages import Message
from turnwise.models.cache import cache_folder

FILE = "answers.jsonl"


def request_key(identity: tuple[str, str], messages: Sequence[Message], temperature: float, max_tokens: int) -> str:
    """Equal for equal requests, in every process."""
    said = [(message.role, message.content) for message in messages]
    text = json.dumps([*identity, said, temperature, max_tokens], ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


class AnswerCache:
    def __init__(self, folder: str) -> None:
        """`folder`: empty for turnwise's own."""
        self._file = (Path(folder).expanduser() if folder else cache_folder() / "judge") / FILE
        self._kept: dict[str, str] = {}
        self._read_to = 0
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise UserError(f"the judge's cache {self._file} cannot be written ({error}): give it a folder") from error

    def get(self, key: str) -> str | None:
        """What others have added since is seen."""
        if key not in self._kept:
            self._read_on()
        return self._kept.get(key)

    def put(self, key: str, text: str) -> None:
        """One whole line at a time; behind a line that a dying process left unfinished a new one begins."""
        line = json.dumps({"key": key, "text": text}) + "\n"
        with self._file.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.seek(0, os.SEEK_END)
            torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
            file.write(("\n" * torn + line).encode("ascii"))
        self._kept[key] = text

    def _read_on(self) -> None:
        with self._file.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._read_to:
                self._read_to = 0
            file.seek(self._read_to)
            whole = file.read().rpartition(b"\n")
        self._read_to += len(whole[0]) + len(whole[1])
        for line in whole[0].split(b"\n"):
            self._keep(line)

    def _keep(self, line: bytes) -> None:
        """A line that cannot be read is passed over: what it held is asked for again."""
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(row, dict) and isinstance(row.get("key"), str) and isinstance(row.get("text"), str):
            self._kept.setdefault(row["key"], row["text"])
