"""Single trajectories: the stored line with the texts of its tokens and pictures of its states."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

from turnwise.core.errors import UserError
from turnwise.pictures.picture import draw_picture_svg, is_only_html
from turnwise.record.images import image_hashes
from turnwise.text.truncation import shorten
from turnwise.viewer.index import FOLDER, MAX_TOKEN_ID, MAX_TRAJECTORY
from turnwise.viewer.json_io import encode_json, read_row
from turnwise.viewer.viewed_folder import FileNotServed, ViewedFolder

MAX_PREVIEW = 160
"""Characters of an answer in the list of trajectories."""
MAX_PICTURE_BYTES = 8 << 20
"""Bytes of pictures in one response; further pictures are left out."""


class LineReader:
    """Reads stored lines of a run. Keeps the last file open for successive reads."""

    def __init__(self, root: ViewedFolder, folder: Path) -> None:
        self._root, self._folder = root, folder
        self._name = ""
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def read(self, name: str, row: Mapping[str, Any]) -> bytes:
        """Return the line of file `name` at the offset and length of an index row, reading nothing else."""
        offset, length = row["offset"], row["length"]
        if not 0 < length <= MAX_TRAJECTORY or offset < 0:
            raise UserError(f"Trajectory {row['number']} has {length} bytes: too large to show, open {name} directly.")
        file = self._open(name)
        if os.fstat(file.fileno()).st_size < offset + length:
            raise FileNotServed(f"{name} does not match its index: the run may be restarting, reload the page.")
        file.seek(offset)
        return file.read(length)

    def _open(self, name: str) -> BinaryIO:
        if self._file is None or self._name != name:
            file = self._root.open(self._folder, FOLDER, name)
            if self._file is not None:
                self._file.close()
            self._name, self._file = name, file
        return self._file


def decode_line(line: bytes, name: str) -> tuple[bytes, dict[str, Any], bool]:
    """Return a stored line, its contents, and whether bytes that are not UTF-8 had to be replaced to read it."""
    row = read_row(line)
    if row is not None:
        return line, row, False
    repaired = line.decode("utf-8", "replace").encode()
    row = read_row(repaired)
    if row is None:
        raise FileNotServed(f"{name} contains a line that is not JSON: restore the file from a copy of the run.")
    return repaired, row, True


def encode_trajectory(
    line: bytes, row: Mapping[str, Any], repaired: bool, tokens: Mapping[str, Any], missing_images: Sequence[str]
) -> bytes:
    """Encode the response for one trajectory. It contains the stored line itself, so that numbers are shown exactly."""
    pictures, cut = draw_pictures(row)
    rest = {
        "tokens": tokens,
        "pictures": pictures,
        "pictures_cut": cut,
        "repaired": repaired,
        "missing_images": missing_images,
    }
    return b'{"row":' + line + b"," + encode_json(rest)[1:]


def token_ids(row: Mapping[str, Any]) -> set[int]:
    """Return all token ids of the turns."""
    lists = [turn.get(key) for turn in iter_turns(row) for key in ("context_ids", "action_ids")]
    ids = {token for tokens in lists if isinstance(tokens, list) for token in tokens if type(token) is int}
    return {token for token in ids if 0 <= token < MAX_TOKEN_ID}


def find_image_hashes(row: Mapping[str, Any]) -> list[str]:
    """Return the hashes of all images in the turns' contexts, each once."""
    return list(dict.fromkeys(name for turn in iter_turns(row) for name in image_hashes(turn)))


def draw_pictures(row: Mapping[str, Any]) -> tuple[list[str | None], bool]:
    """Draw the start and the state after each turn as SVG, or None; also return whether some were left out."""
    pictures: list[str | None] = []
    size, cut = 0, False
    for picture in (row.get("start"), *(turn.get("picture") for turn in iter_turns(row))):
        svg = None if cut else draw_picture(picture)
        size += len(svg or "")
        cut = cut or size > MAX_PICTURE_BYTES
        pictures.append(None if cut else svg)
    return pictures, cut


def draw_picture(picture: object) -> str | None:
    """Return a stored picture as SVG, or None if it is malformed."""
    if not isinstance(picture, dict) or is_only_html(picture):
        return None
    try:
        return draw_picture_svg(picture)
    except (KeyError, TypeError, ValueError, AttributeError, UserError):
        return None


def preview_answer(row: Mapping[str, Any]) -> str:
    """Return the start of the last answer on one line: the text in its answer tags, after its thinking, or its call."""
    turns = list(iter_turns(row))
    message = turns[-1].get("message") if turns else None
    content = message.get("content") if isinstance(message, dict) else None
    text = content if isinstance(content, str) else ""
    answers = re.findall(r"<answer>(.*?)(?:</answer>|$)", text, re.DOTALL)
    words = " ".join((answers[-1] if answers else text.rpartition("</think>")[2]).split())
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not words and isinstance(calls, list) and calls and isinstance(calls[-1], dict):
        words = " ".join(f"{calls[-1].get('name')} {calls[-1].get('arguments')}".split())
    return shorten(words, MAX_PREVIEW)


def iter_turns(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    turns = row.get("turns")
    return (turn for turn in turns if isinstance(turn, dict)) if isinstance(turns, list) else iter(())
