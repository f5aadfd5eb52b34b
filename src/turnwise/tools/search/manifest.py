"""What an index is: written last, so that a folder without it is none."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from turnwise.core.errors import UserError

MANIFEST = "manifest.json"
VERSION = 1
"""Raise it when older folders can no longer be read."""

Mode = Literal["lexical", "dense", "hybrid"]


class DenseSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    dtype: Literal["float16", "float32"] = "float16"
    query_prefix: str = ""
    passage_prefix: str = ""
    """What some encoders were trained to see before a text, as `query: ` and `passage: `."""


class Manifest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = VERSION
    passages: int
    files: int
    digest: str
    """Of the contents of all files that were read."""
    passage_characters: int
    dense: DenseSettings | None = None
    sizes: dict[str, int]
    """Bytes of every file of the index, by which a cut one is told."""


def write_manifest(manifest: Manifest, folder: Path) -> None:
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")


def sizes_of(folder: Path) -> dict[str, int]:
    found = (path for path in sorted(folder.iterdir()) if path.name != MANIFEST)
    return {path.name: path.stat().st_size for path in found}


def read_manifest(folder: Path) -> Manifest:
    """That of a whole index; what is none gets one line."""
    if not (folder / MANIFEST).is_file():
        raise UserError(f"{folder} is no index: build one with turnwise index FILES --to FOLDER")
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except (OSError, ValidationError) as error:
        raise damaged(folder, "its manifest cannot be read") from error
    if manifest.version != VERSION:
        raise UserError(f"{folder} is an index of version {manifest.version}, not {VERSION}: build it again")
    for name, size in manifest.sizes.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            raise damaged(folder, f"{name} is missing or not of its length")
    return manifest


def damaged(folder: Path, what: str) -> UserError:
    return UserError(f"the index {folder} is damaged ({what}): build it again")
