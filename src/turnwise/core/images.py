"""Images by content hash, and how they are written among token ids (`pictures/image_store.py` keeps them).

A token of an image is an id below 0 that names the image and the feature that is its embedding:

    text       <user>   |        image, 4 tokens         |   text
    ids         1027      -1-c    -2-c    -3-c    -4-c       311        c = hash << INDEX_BITS

So equal ids mean equal content, also with images: prefixes are shared, cached and packed as those of text.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

INDEX_BITS = 14
MAX_IMAGE_TOKENS = 1 << INDEX_BITS
"""Most tokens of an image."""
HASH_BITS = 63 - INDEX_BITS
"""Two of a million images have equal hashes with a probability of 0.1 %; the store then raises."""


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
