"""The end of a file, such as the last lines of a log, without reading the rest."""

import os
from typing import BinaryIO


def read_last_lines(file: BinaryIO, limit: int) -> list[bytes]:
    """Return the whole lines in the last `limit` bytes. A line without its newline is left out."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - limit))
    return file.read(limit).split(b"\n")[1 if size > limit else 0 : -1]


def read_last_text(file: BinaryIO, limit: int) -> str | None:
    """Return the last line in the last `limit` bytes that is not blank; None without one."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
    lines = file.read().decode("utf-8", "replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), None)
