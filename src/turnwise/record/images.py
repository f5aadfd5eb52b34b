"""Images of a run or evaluation, images/HASH.png, and how the rows of turns refer to them.

`pictures.image_store.ImageStore` writes the files. A row's "images" are [{"hash": ..., "start": ..., "end": ...}, ...]:
the ids context_ids[start:end] are the image's. Rows of untrusted files are read here too.
"""

import re
from collections.abc import Mapping
from typing import Any

from turnwise.core.images import ImageSpan

IMAGES_FOLDER = "images"
HASH = re.compile(r"[0-9a-f]{8,128}")


def image_file_name(image_hash: str) -> str | None:
    """Return the name of the image's file; None if it is not a hash, which could lead out of the folder."""
    return f"{image_hash}.png" if HASH.fullmatch(image_hash) else None


def span_to_row(span: ImageSpan) -> dict[str, Any]:
    return {"hash": span.hash, "start": span.start, "end": span.end}


def span_from_row(row: Mapping[str, Any]) -> ImageSpan:
    return ImageSpan(hash=row["hash"], start=row["start"], end=row["end"])


def image_hashes(turn: Mapping[str, Any]) -> list[str]:
    """Return the hashes in the row of a turn, in order; malformed ones are left out."""
    rows = turn.get("images")
    hashes = [row.get("hash") for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    return [hashe for hashe in hashes if isinstance(hashe, str) and HASH.fullmatch(hashe)]
