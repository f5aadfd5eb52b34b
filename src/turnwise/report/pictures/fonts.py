"""Fonts of this machine for pictures made of pixels: letters, letters of one width, Chinese and its neighbours, emoji.

Pillow draws a text with one font and an empty box for what that font lacks, so texts are split by who has what.
"""

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.core.errors import UserError
from turnwise.report.pictures.letters import JOINER

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
SANS = ("NotoSans-Regular", "DejaVuSans", "LiberationSans-Regular", "Arial", "Helvetica", "SFNS", "segoeui", "arial")
BOLD = ("NotoSans-Bold", "DejaVuSans-Bold", "LiberationSans-Bold", "Arial Bold", "segoeuib", "arialbd")
MONO = ("DejaVuSansMono", "NotoSansMono-Regular", "LiberationMono-Regular", "Menlo", "SFNSMono", "consola", "cour")
CJK = (
    "NotoSansCJK-Regular",
    "NotoSansCJKsc-Regular",
    "NotoSansSC-Regular",
    "SourceHanSansSC-Regular",
    "wqy-microhei",
    "wqy-zenhei",
    "DroidSansFallbackFull",
    "PingFang",
    "Hiragino Sans GB",
    "Arial Unicode",
    "msyh",
    "malgun",
    "YuGothM",
    "simsun",
)
EMOJI = ("NotoColorEmoji", "Apple Color Emoji", "seguiemj", "NotoEmoji-Regular", "Symbola")
STRIKES = (109, 160, 136, 96)
"""The sizes of bitmap fonts of emoji: they have no other."""
UNKNOWN = "\U000fffff"
"""A character that no font has: what is drawn for it stands for all that a font lacks."""


@lru_cache(maxsize=1)
def installed() -> dict[str, Path]:
    """Every font file of this machine by its name without the ending."""
    found: dict[str, Path] = {}
    for folder in FOLDERS:
        root = Path(folder).expanduser()
        for ending in ("ttf", "ttc", "otf"):
            for path in sorted(root.rglob(f"*.{ending}")) if root.is_dir() else ():
                found.setdefault(path.stem, path)
    return found


def first_of(names: Sequence[str]) -> Path | None:
    fonts = installed()
    return next((fonts[name] for name in names if name in fonts), None)


def missing() -> str | None:
    """What pictures will lack on this machine, with the mend; None where they lack nothing."""
    lacks = [
        name
        for name, fonts in (("Chinese, Japanese and Korean", CJK), ("emoji", EMOJI), ("box drawing", MONO))
        if first_of(fonts) is None
    ]
    if not lacks:
        return None
    return (
        f"no font for {' and '.join(lacks)} was found, boxes will stand in pictures: "
        "install fonts-noto-cjk, fonts-noto-color-emoji and fonts-dejavu, or put fonts into ~/.local/share/fonts"
    )


def runs(text: str, *, bold: bool, mono: bool, size: int) -> Iterator[tuple[str, "FreeTypeFont", int]]:
    """Pieces of the text, each with a font that has it, and the size that the font was made for.

    The first font of the chain takes what none of them has.
    """
    chain = _chain(bold, mono)
    piece, chosen = "", chain[0]
    for letter in text:
        best = chosen if _clings(letter) else next((path for path in chain if _has(path, letter)), chain[0])
        if best != chosen and piece:
            yield piece, *_sized(chosen, size)
            piece = ""
        piece, chosen = piece + letter, best
    if piece:
        yield piece, *_sized(chosen, size)


def _chain(bold: bool, mono: bool) -> tuple[Path | None, ...]:
    """Where to look for a letter; None is Pillow's own small font, which is always there."""
    own = first_of(MONO) if mono else first_of(BOLD) if bold else None
    paths = [own, first_of(SANS), first_of(EMOJI), first_of(CJK), first_of(MONO)]
    return tuple(dict.fromkeys(path for path in paths if path is not None)) or (None,)


def _clings(letter: str) -> bool:
    """Joiners and variation signs go with the letter before them, and so does a space."""
    return letter in (" ", JOINER) or "\ufe00" <= letter <= "\ufe0f" or "\U0001f3fb" <= letter <= "\U0001f3ff"


@lru_cache(maxsize=8192)
def _has(path: Path | None, letter: str) -> bool:
    """Whether the font draws something else for it than for a character that no font has."""
    if path is None:
        return True
    if letter.isascii() and path.stem in EMOJI:
        return False  # its digits are parts of keycaps
    font, _ = _sized(path, 16)
    drawn = font.getmask(letter)
    return (drawn.size, bytes(drawn)) != _lacking(path)


@lru_cache(maxsize=64)
def _lacking(path: Path) -> tuple[tuple[int, int], bytes]:
    drawn = _sized(path, 16)[0].getmask(UNKNOWN)
    return drawn.size, bytes(drawn)


@lru_cache(maxsize=256)
def _sized(path: Path | None, size: int) -> tuple["FreeTypeFont", int]:
    """The font, and the size that it has: a bitmap font comes in one size only, and is scaled by who draws."""
    from PIL import ImageFont

    if path is None:
        font = ImageFont.load_default(size)
        if not isinstance(font, ImageFont.FreeTypeFont):
            raise UserError("this Pillow has no FreeType: pip install --force-reinstall pillow")
        return font, size
    for wanted in (size, *STRIKES):
        try:
            return ImageFont.truetype(str(path), wanted), wanted
        except OSError:
            continue
    raise UserError(f"the font {path} cannot be read: remove or replace it")
