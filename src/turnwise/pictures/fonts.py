"""Fonts of this machine, and which of them has a character.

Pillow draws a text with one font, and an empty box for a character that the font lacks. So texts are split by font.
"""

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.core.errors import UserError
from turnwise.files.package_data import load_toml
from turnwise.pictures.text import EMOJI_JOINER

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

FOLDERS = (
    "~/.fonts",
    "~/.local/share/fonts",
    "~/Library/Fonts",
    "/usr/local/share/fonts",
    "/usr/share/fonts",
    "/Library/Fonts",
    "/System/Library/Fonts",
    os.path.join(os.environ.get("WINDIR", "C:\\Windows"), "Fonts"),  # noqa: PTH118
)
BITMAP_SIZES = (109, 160, 136, 96)
"""Sizes of bitmap emoji fonts, which cannot be scaled by FreeType."""
UNASSIGNED = "\U000fffff"
"""A character that no font has: it is drawn as the font's box for missing characters."""


@lru_cache(maxsize=1)
def installed_fonts() -> dict[str, Path]:
    """Return every font file on this machine by its name without the suffix."""
    fonts: dict[str, Path] = {}
    for folder in FOLDERS:
        root = Path(folder).expanduser()
        for ending in ("ttf", "ttc", "otf"):
            for path in sorted(root.rglob(f"*.{ending}")) if root.is_dir() else ():
                fonts.setdefault(path.stem, path)
    return fonts


@lru_cache(maxsize=1)
def font_names() -> dict[str, list[str]]:
    """Return the names of fonts by kind: sans, bold, mono, cjk, emoji."""
    return load_toml("turnwise.pictures", "fonts.toml")


def find_font(kind: str) -> Path | None:
    """Return the file of the first installed font of a kind."""
    fonts = installed_fonts()
    return next((fonts[name] for name in font_names()[kind] if name in fonts), None)


def describe_missing_fonts() -> str | None:
    """Name the scripts that no installed font covers and how to install one. None if nothing is missing."""
    missing = [
        name
        for name, kind in (("Chinese, Japanese and Korean", "cjk"), ("emoji", "emoji"), ("box drawing", "mono"))
        if find_font(kind) is None
    ]
    if not missing:
        return None
    return (
        f"no font for {' and '.join(missing)} found; pictures will show boxes instead. "
        "Install fonts-noto-cjk, fonts-noto-color-emoji and fonts-dejavu, or put fonts into ~/.local/share/fonts"
    )


def split_by_font(text: str, chain: Sequence[Path | None], size: int) -> Iterator[tuple[str, "FreeTypeFont", int]]:
    """Split text into pieces, each with the first font of `chain` that has its characters, and that font's size.

    Characters that no font has go to the first font.
    """
    piece, chosen = "", chain[0]
    for letter in text:
        best = (
            chosen if _belongs_to_previous(letter) else next((path for path in chain if _has(path, letter)), chain[0])
        )
        if best != chosen and piece:
            yield piece, *_load_font(chosen, size)
            piece = ""
        piece, chosen = piece + letter, best
    if piece:
        yield piece, *_load_font(chosen, size)


def font_chain(bold: bool, mono: bool) -> tuple[Path | None, ...]:
    """Return the fonts to try in order; None is Pillow's built-in font."""
    kinds = (*["mono"] * mono, *["bold"] * (bold and not mono), "sans", "emoji", "cjk", "mono")
    paths = map(find_font, kinds)
    return tuple(dict.fromkeys(path for path in paths if path is not None)) or (None,)


def _belongs_to_previous(letter: str) -> bool:
    """Return whether a character stays with the one before it: joiners, variation selectors, skin tones, spaces."""
    return letter in (" ", EMOJI_JOINER) or "\ufe00" <= letter <= "\ufe0f" or "\U0001f3fb" <= letter <= "\U0001f3ff"


@lru_cache(maxsize=8192)
def _has(path: Path | None, letter: str) -> bool:
    """Return whether the font draws the character differently from a missing one."""
    if path is None:
        return True
    if letter.isascii() and path.stem in font_names()["emoji"]:
        return False  # emoji fonts have digits only for keycaps
    font, _ = _load_font(path, 16)
    drawn = font.getmask(letter)
    return (drawn.size, bytes(drawn)) != _missing_glyph(path)


@lru_cache(maxsize=64)
def _missing_glyph(path: Path) -> tuple[tuple[int, int], bytes]:
    drawn = _load_font(path, 16)[0].getmask(UNASSIGNED)
    return drawn.size, bytes(drawn)


@lru_cache(maxsize=256)
def _load_font(path: Path | None, size: int) -> tuple["FreeTypeFont", int]:
    """Return the font and its size, which differs from `size` for bitmap fonts."""
    if path is None:
        return load_built_in_font(size), size
    from PIL import ImageFont

    for font_size in (size, *BITMAP_SIZES):
        try:
            return ImageFont.truetype(str(path), font_size), font_size
        except OSError:
            continue
    raise UserError(f"Cannot read the font {path}. Remove or replace it.")


@lru_cache(maxsize=256)
def load_built_in_font(size: int) -> "FreeTypeFont":
    """Return Pillow's own font."""
    from PIL import ImageFont

    font = ImageFont.load_default(size)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise UserError("Pillow was built without FreeType: pip install --force-reinstall pillow.")
    return font
