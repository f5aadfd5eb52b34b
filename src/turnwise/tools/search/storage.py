"""Files of an index folder: passages as JSON lines with their offsets, and a manifest.

The manifest is written last, so a folder without one is not an index.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, overload

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from turnwise.core.errors import UserError
from turnwise.tools.search.types import Passage

PASSAGES, OFFSETS, MANIFEST = "passages.jsonl", "offsets.npy", "manifest.json"
VERSION = 1
"""Increase it when older folders can no longer be read."""


class DenseSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    dtype: Literal["float16", "float32"] = "float16"
    query_prefix: str = ""
    passage_prefix: str = ""
    """Prefixes that some encoders were trained with, such as `query: ` and `passage: `."""


class Manifest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = VERSION
    passages: int
    files: int
    digest: str
    """Hash of the contents of all files."""
    passage_characters: int
    dense: DenseSettings | None = None
    sizes: dict[str, int]
    """Bytes of every file of the index, to detect truncated ones."""


def write_manifest(manifest: Manifest, folder: Path) -> None:
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")


def file_sizes(folder: Path) -> dict[str, int]:
    paths = (path for path in sorted(folder.iterdir()) if path.name != MANIFEST)
    return {path.name: path.stat().st_size for path in paths}


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of an index and check its files. Raises UserError if it is not a complete index."""
    if not (folder / MANIFEST).is_file():
        problem = "is not a search index" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {problem}: build an index with `turnwise index FILES --to FOLDER`.")
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except (OSError, ValidationError) as error:
        raise damaged_index(folder, "its manifest cannot be read") from error
    if manifest.version != VERSION:
        raise UserError(f"{folder} has index version {manifest.version}, not {VERSION}: build the index again.")
    for name, size in manifest.sizes.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            raise damaged_index(folder, f"{name} is missing or has the wrong size")
    return manifest


def damaged_index(folder: Path, reason: str) -> UserError:
    return UserError(f"The index {folder} is damaged ({reason}): build it again.")


def write_passages(passages: Iterable[Passage], folder: Path) -> int:
    """Write the passages one by one and return their number."""
    offsets, offset = [0], 0
    with (folder / PASSAGES).open("wb") as file:
        for passage in passages:
            row = {"title": passage.title, "text": passage.text, "id": passage.id}
            line = json.dumps(row, ensure_ascii=False).encode() + b"\n"
            file.write(line)
            offset += len(line)
            offsets.append(offset)
    np.save(folder / OFFSETS, np.array(offsets, dtype=np.int64))
    return len(offsets) - 1


class StoredPassages(Sequence[Passage]):
    """Passages on disk, read on access, from any thread (pread)."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PASSAGES
        self._offsets = np.load(folder / OFFSETS, mmap_mode="r")
        if self._offsets.ndim != 1 or len(self._offsets) < 2 or self._offsets[-1] != self._path.stat().st_size:
            raise ValueError("its passages and offsets do not match")
        self._file = os.open(self._path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, number: int) -> Passage: ...
    @overload
    def __getitem__(self, number: slice) -> list[Passage]: ...
    def __getitem__(self, number: int | slice) -> Passage | list[Passage]:
        if isinstance(number, slice):
            return [self[index] for index in range(*number.indices(len(self)))]
        if not 0 <= number < len(self):
            raise IndexError(number)
        start, end = int(self._offsets[number]), int(self._offsets[number + 1])
        try:
            row = json.loads(os.pread(self._file, end - start, start))
            return Passage(title=row["title"], text=row["text"], id=row["id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self._path} is damaged at passage {number}: build the index again.") from error

    def __iter__(self) -> Iterator[Passage]:
        return (self[number] for number in range(len(self)))
