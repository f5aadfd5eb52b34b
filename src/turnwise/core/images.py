"""Images by content hash, and where they are among the token ids of a turn."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from turnwise.core.errors import UserError, read_failure

MEMORY_BYTES = 256 << 20
"""Encoded images kept in memory by a store that can read them again from its folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpan:
    """An image in a sequence of ids: its tokens are [start, end). Images of equal size have equal ids there."""

    hash: str
    """Key of the image in the `ImageStore`."""
    start: int
    end: int


def image_hash(data: bytes) -> str:
    """Return the content hash of an encoded image, which is also the name of its file."""
    return hashlib.sha256(data).hexdigest()[:32]


class ImageStore:
    """Encoded images by content hash.

    With a folder, each image is written once as HASH.png, and the least recently used ones leave the memory. Without
    one, all stay in memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._images: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def put(self, data: bytes) -> str:
        """Keep the image; return its hash."""
        key = image_hash(data)
        if key not in self._images:
            if self._folder is not None:
                self._write(self._file(self._folder, key), data)
            self._remember(key, data)
        return key

    def get(self, key: str) -> bytes:
        """Return the encoded image. Raises UserError if the store never had it or its file is gone."""
        if key in self._images:
            self._images.move_to_end(key)
            return self._images[key]
        if self._folder is None:
            raise UserError(f"Image {key} is not in the store. Keep the run's images/ folder with its trajectories.")
        file = self._file(self._folder, key)
        try:
            data = file.read_bytes()
        except OSError as error:
            raise UserError(f"The image {read_failure(file, error)}. Restore the run's images/ folder.") from error
        self._remember(key, data)
        return data

    def _remember(self, key: str, data: bytes) -> None:
        self._images[key] = data
        self._bytes += len(data)
        while self._folder is not None and self._bytes > MEMORY_BYTES and len(self._images) > 1:
            self._bytes -= len(self._images.popitem(last=False)[1])

    @staticmethod
    def _file(folder: Path, key: str) -> Path:
        return folder / f"{key}.png"

    @staticmethod
    def _write(file: Path, data: bytes) -> None:
        if file.exists():
            return
        aside = file.with_name(f".{file.name}.part")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            aside.write_bytes(data)
            aside.rename(file)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise UserError(f"Cannot write {file} ({reason}). Fix that, then resume the run.") from error
