"""Images by content hash, and how they are written among token ids.

A token of an image is an id below 0 that names the image and the feature that is its embedding:

    text       <user>   |        image, 4 tokens         |   text
    ids         1027      -1-c    -2-c    -3-c    -4-c       311        c = hash << INDEX_BITS

So equal ids mean equal content, also with images: prefixes are shared, cached and packed as those of text.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnwise.core.bounded_cache import BoundedCache
from turnwise.core.errors import UserError, read_failure
from turnwise.core.image_encoding import MAX_IMAGE_BYTES

INDEX_BITS = 14
MAX_IMAGE_TOKENS = 1 << INDEX_BITS
"""Most tokens of an image."""
HASH_BITS = 63 - INDEX_BITS
"""Two of a million images have equal hashes with a probability of 0.1 %; the store then raises."""
MEMORY_BYTES = 256 << 20
"""Encoded images kept in memory by a store that can read them again from its folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpan:
    """An image in a sequence of ids: its tokens are [start, end), with the scaffolding between them, if any."""

    hash: str
    """Key of the image in the `ImageStore`."""
    start: int
    end: int


def image_hash(data: bytes) -> str:
    """Return the content hash of an encoded image, which is also the name of its file."""
    return format_hash(int.from_bytes(hashlib.sha256(data).digest()[:8]) >> (64 - HASH_BITS))


def format_hash(number: int) -> str:
    """Return the hash that this number of HASH_BITS bits is."""
    return f"{number:013x}"


def image_token_id(key: str, index: int) -> int:
    """Return the id of an image's token number `index`."""
    return -1 - (int(key, 16) << INDEX_BITS) - index


def image_of_token(token: int) -> tuple[str, int]:
    """Return the hash of the image and the index of the token in it, for an id below 0."""
    number, index = divmod(-1 - token, MAX_IMAGE_TOKENS)
    return format_hash(number), index


def find_images(ids: Sequence[int]) -> tuple[ImageSpan, ...]:
    """Return the images among the ids, in order."""
    starts: list[int] = []
    ends: list[int] = []
    for position in [position for position, token in enumerate(ids) if token < 0]:
        if ends and ids[position] == ids[ends[-1] - 1] - 1:  # the next token of the same image
            ends[-1] = position + 1
        else:
            starts.append(position)
            ends.append(position + 1)
    return tuple(
        ImageSpan(hash=image_of_token(ids[start])[0], start=start, end=end)
        for start, end in zip(starts, ends, strict=True)
    )


def count_images(ids: Iterable[int]) -> int:
    """Return the number of images that begin among the ids."""
    return sum(token < 0 and image_of_token(token)[1] == 0 for token in ids)


def image_file(folder: Path, key: str) -> Path:
    """Return the file of the image with this hash in an images/ folder."""
    return folder / f"{key}.png"


def read_image_file(file: Path) -> bytes:
    """Return the bytes of HASH.png. Raise UserError if it is missing or has another hash."""
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_IMAGE_BYTES + 1)  # more has another hash anyway
    except OSError as error:
        raise UserError(f"the image {read_failure(file, error)}. Restore the images/ folder.") from error
    if image_hash(data) != file.stem:
        raise UserError(f"the image {file} has changed since it was recorded. Restore it from a copy.")
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
        self._folder, self._images.max_bytes = folder, MEMORY_BYTES

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
