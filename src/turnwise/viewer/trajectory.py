"""One trajectory as it is stored, with the texts of its tokens and pictures of its states."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from turnwise.core.errors import UserError
from turnwise.report.pictures.picture import draw_picture_svg
from turnwise.viewer.answers import encode_answer
from turnwise.viewer.index import FOLDER, MAX_TRAJECTORY
from turnwise.viewer.lines import read_row
from turnwise.viewer.root import NotThere, Root

MAX_PICTURES = 8 << 20
"""Bytes of pictures in an answer; what comes after is left out."""
LARGEST_ID = 1 << 40


class LineReader:
    """Stored lines of a run. The file that was read last stays open, for those who read many one after another."""

    def __init__(self, root: Root, folder: Path) -> None:
        self._root, self._folder = root, folder
        self._name = ""
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def read(self, name: str, row: Mapping[str, Any]) -> bytes:
        """The line that an index's row points at, in the file of this name, and no other byte of it."""
        offset, length = row["offset"], row["length"]
        if not 0 < length <= MAX_TRAJECTORY or offset < 0:
            raise UserError(f"trajectory {row['number']} is {length} bytes long: too large to show, read {name} itself")
        file = self._open(name)
        if os.fstat(file.fileno()).st_size < offset + length:
            raise NotThere(f"{name} does not hold what its index says: the run may be starting again, reload the page")
        file.seek(offset)
        return file.read(length)

    def _open(self, name: str) -> BinaryIO:
        if self._file is None or self._name != name:
            opened = self._root.open(self._folder, FOLDER, name)
            if self._file is not None:
                self._file.close()
            self._name, self._file = name, opened
        return self._file


def readable(line: bytes, name: str) -> tuple[bytes, dict[str, Any], bool]:
    """A stored line, what it says, and whether bytes that are no UTF-8 had to be replaced to read it."""
    row = read_row(line)
    if row is not None:
        return line, row, False
    mended = line.decode("utf-8", "replace").encode()
    row = read_row(mended)
    if row is None:
        raise NotThere(f"{name} holds a line that is no JSON: restore the file from a copy of the run")
    return mended, row, True


def trajectory_answer(line: bytes, row: Mapping[str, Any], mended: bool, tokens: Mapping[str, Any]) -> bytes:
    """The stored line itself goes out, not what was parsed of it: what is shown is what was written, to the letter."""
    drawn, cut = pictures(row)
    rest = {"tokens": tokens, "pictures": drawn, "pictures_cut": cut, "mended": mended}
    return b'{"row":' + line + b"," + encode_answer(rest)[1:]


def token_ids(row: Mapping[str, Any]) -> set[int]:
    """Every id that occurs in the turns."""
    lists = [turn.get(key) for turn in turns_of(row) for key in ("context_ids", "action_ids")]
    ids = {each for listed in lists if isinstance(listed, list) for each in listed if type(each) is int}
    return {each for each in ids if 0 <= each < LARGEST_ID}


def pictures(row: Mapping[str, Any]) -> tuple[list[str | None], bool]:
    """The start and the state after each turn, as SVG; None where there is no picture. And whether some were cut."""
    drawn: list[str | None] = []
    size, cut = 0, False
    for picture in (row.get("start"), *(turn.get("picture") for turn in turns_of(row))):
        svg = None if cut else draw(picture)
        size += len(svg or "")
        cut = cut or size > MAX_PICTURES
        drawn.append(None if cut else svg)
    return drawn, cut


def draw(picture: object) -> str | None:
    """A picture that is none, or not as an environment makes it, is not drawn."""
    if not isinstance(picture, dict):
        return None
    try:
        return draw_picture_svg(picture)
    except (KeyError, TypeError, ValueError, AttributeError, UserError):
        return None


def turns_of(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    turns = row.get("turns")
    return (turn for turn in turns if isinstance(turn, dict)) if isinstance(turns, list) else iter(())
