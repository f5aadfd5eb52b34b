"""Encoded images by content hash, in memory and in a folder."""

from collections.abc import Iterable
from pathlib import Path

from turnwise.concurrency.bounded_cache import BoundedCache
from turnwise.core.errors import UserError, read_failure
from turnwise.core.images import image_hash
from turnwise.files.disk import wrap_disk_errors, write_atomic
from turnwise.pictures.image import MAX_IMAGE_BYTES

MEMORY_BYTES = 256 << 20
"""Encoded images kept in memory by a store that can read them again from its folder."""


def image_file(folder: Path, key: str) -> Path:
    """Return the file of the image with this hash in an images/ folder."""
    return folder / f"{key}.png"


def read_image_file(file: Path) -> bytes:
    """Return the bytes of HASH.png. Raise UserError if it is missing or has another hash."""
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_IMAGE_BYTES + 1)  # more has another hash anyway
    except OSError as error:
        raise UserError(f"The image {read_failure(file, error)}. Restore the images/ folder.") from error
    if image_hash(data) != file.stem:
        raise UserError(f"The image {file} has changed since it was recorded. Restore it from a copy.")
    return data


class ImageStore:
    """Encoded images by content hash.

    With a folder, each image is written once as HASH.png, and the least recently used ones leave the memory. Without
    one, all stay in memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._images = BoundedCache[bytes](len, None if folder is None else MEMORY_BYTES)

    def __contains__(self, key: str) -> bool:
        return key in self._images or (self._folder is not None and image_file(self._folder, key).exists())

    def put(self, data: bytes) -> str:
        """Keep the image; return its hash."""
        key = image_hash(data)
        if key not in self._images:
            if self._folder is not None:
                self._write(image_file(self._folder, key), data)
            self._images.put(key, data)
        if self.get(key) != data:
            raise UserError(f"Two images have the hash {key}, which happens once in a million runs. Change the seed.")
        return key

    def forget(self, keys: Iterable[str]) -> None:
        """Remove these images from the memory."""
        for key in keys:
            self._images.drop(key)

    def keep_in(self, folder: Path) -> None:
        """Write the images to a folder from now on, those that the store has included."""
        for key, data in self._images.items():
            self._write(image_file(folder, key), data)
        self._folder, self._images.max_size = folder, MEMORY_BYTES

    def get(self, key: str) -> bytes:
        """Return the encoded image. Raises UserError if the store never had it, or its file is gone or has changed."""
        if (kept := self._images.get(key)) is not None:
            return kept
        if self._folder is None:
            raise UserError(f"Image {key} is not in the store. Keep the run's images/ folder with its trajectories.")
        data = read_image_file(image_file(self._folder, key))
        self._images.put(key, data)
        return data

    @staticmethod
    def _write(file: Path, data: bytes) -> None:
        if not file.exists():
            with wrap_disk_errors(file, "resume the run"):
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(file, data, durable=False)
