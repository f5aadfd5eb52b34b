"""Text for images with many words: each glyph is drawn once per size and position within a pixel, then pasted.

Twenty times as fast as drawing every line anew, and evenly spaced, since widths are not rounded to pixels. The font is
Pillow's own, so that every machine gets the same pixels.
"""

from functools import lru_cache
from math import ceil, floor
from typing import TYPE_CHECKING

from turnwise.pictures.fonts import load_built_in_font
from turnwise.pictures.image import import_pillow
from turnwise.pictures.text import to_single_line

if TYPE_CHECKING:
    from PIL.Image import Image

LEVELS = 8
"""Opacities of a pixel above 0."""
PHASES = 4
"""Positions within a pixel; glyphs are drawn at PHASES times their size and reduced."""
OPACITY = [round((covered / 255) ** 0.7 * LEVELS) * 255 // LEVELS for covered in range(256)]
"""Opacity by coverage of the pixel, 0 to 255: thin strokes stay dark, and few values make small files."""
MEASURED_SIZE = 64
"""Font size at which characters are measured: hinting hardly changes widths there."""
Glyph = tuple["Image", int, int]
"""Coverage of the pixels, and the distance of its top left corner from the start of the character's baseline."""


def text_width(text: str) -> float:
    """Return the width of a line of text, in font sizes."""
    return sum(map(_glyph_width, to_single_line(text)))


def paste_text(image: "Image", x: float, y: float, text: str, *, size: float, fill: tuple[int, int, int]) -> None:
    """Draw a line of text that starts at x and has its baseline at y, in pixels."""
    for character in to_single_line(text):
        column, phase = divmod(round(x * PHASES), PHASES)
        if (glyph := _draw_glyph(character, round(size * PHASES), phase)) is not None:
            mask, left, top = glyph
            image.paste(fill, (column + left, round(y) + top), mask)
        x += size * _glyph_width(character)


@lru_cache(maxsize=4096)
def _glyph_width(character: str) -> float:
    return load_built_in_font(MEASURED_SIZE).getlength(character) / MEASURED_SIZE


@lru_cache(maxsize=4096)
def _draw_glyph(character: str, large_size: int, phase: int) -> Glyph | None:
    """Return None for a character without visible pixels."""
    pil, font = import_pillow(), load_built_in_font(large_size)
    left, top, right, bottom = font.getbbox(character, anchor="ls")
    if right <= left or bottom <= top:
        return None
    first_column, first_row = floor((left + phase) / PHASES), floor(top / PHASES)
    columns, rows = ceil((right + phase) / PHASES) - first_column, ceil(bottom / PHASES) - first_row
    large = pil.Image.new("L", (columns * PHASES, rows * PHASES))
    start = phase - first_column * PHASES, -first_row * PHASES
    pil.ImageDraw.Draw(large).text(start, character, font=font, fill=255, anchor="ls")
    return large.reduce(PHASES).point(OPACITY), first_column, first_row
