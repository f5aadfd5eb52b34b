"""Drawings as pixels with Pillow: supersampled for smooth edges, with a font that has each character.

Pillow draws a text with one font, and an empty box for a character that the font lacks. So texts are split by font.
"""

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from turnwise.core.errors import UserError
from turnwise.core.image_encoding import import_pillow
from turnwise.pictures.shapes import BASELINE, Drawing, Ellipse, Label, Point, Polygon, Polylines, Rect, Shape
from turnwise.pictures.text import EMOJI_JOINER, display_width, to_single_line

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

SUPERSAMPLING = 2
"""Pixels drawn per pixel kept, in each direction."""
MAX_PIXELS = 16_000_000
PAPER = "#ffffff"


def drawing_to_image(
    drawing: Drawing, scale: float = 2.0, paper: str = PAPER, *, installed_fonts: bool = True, sharpen: bool = True
) -> "Image":
    """Draw at `scale` pixels per unit, or fewer if the image would exceed MAX_PIXELS.

    Without `installed_fonts`, texts are drawn in Pillow's built-in font, so that every machine gets the same pixels.
    Without `sharpen`, pixels are averaged, which takes a tenth of the time and suffices for straight edges.
    """
    margin = drawing.margin
    width, height = drawing.width + 2 * margin, drawing.height + 2 * margin
    scale = min(scale, (MAX_PIXELS / (width * height)) ** 0.5 / SUPERSAMPLING)
    fine = scale * SUPERSAMPLING
    pil = import_pillow()
    large = pil.Image.new("RGB", (max(round(width * fine), 1), max(round(height * fine), 1)), paper)
    pen = _Pen(large, fine, margin, installed_fonts)
    for shape in drawing.shapes:
        pen.draw(shape)
    if not sharpen:
        return large.reduce(SUPERSAMPLING)
    return large.resize((max(round(width * scale), 1), max(round(height * scale), 1)), pil.Image.Resampling.LANCZOS)


class _Pen:
    def __init__(self, image: "Image", scale: float, margin: float, installed_fonts: bool) -> None:
        self._image = image
        self._draw = import_pillow().ImageDraw.Draw(image)
        self._scale = scale
        self._margin = margin
        self._installed_fonts = installed_fonts

    def draw(self, shape: Shape) -> None:
        match shape:
            case Rect():
                self._box(shape)
            case Ellipse():
                self._disc(shape)
            case Polylines():
                for path in shape.paths:
                    self._line(path, shape.stroke, shape.thickness)
            case Polygon():
                self._draw.polygon([self._at(point) for point in shape.points], fill=shape.fill)
                if shape.stroke is not None:
                    self._line((*shape.points, shape.points[0]), shape.stroke, shape.thickness)
            case Label():
                self._label(shape)
            case _:
                assert_never(shape)

    def _at(self, point: Point) -> Point:
        return self._scale * (point[0] + self._margin), self._scale * (point[1] + self._margin)

    def _pixels(self, length: float) -> int:
        return max(round(self._scale * length), 1)

    def _box(self, box: Rect) -> None:
        """Move the edge out by half a stroke: SVG centres a stroke on the edge, Pillow draws it inside."""
        half = box.thickness / 2 if box.stroke is not None else 0.0
        left, top = self._at((box.x - half, box.y - half))
        right, bottom = self._at((box.x + box.width + half, box.y + box.height + half))
        self._draw.rounded_rectangle(
            (left, top, max(right - 1, left), max(bottom - 1, top)),
            radius=self._scale * (box.radius + half) if box.radius else 0,
            fill=box.fill,
            outline=box.stroke,
            width=self._pixels(box.thickness) if box.stroke is not None else 0,
        )

    def _disc(self, disc: Ellipse) -> None:
        half = disc.thickness / 2 if disc.stroke is not None else 0.0
        left, top = self._at((disc.x - disc.rx - half, disc.y - disc.ry - half))
        right, bottom = self._at((disc.x + disc.rx + half, disc.y + disc.ry + half))
        self._draw.ellipse(
            (left, top, right, bottom),
            fill=disc.fill,
            outline=disc.stroke,
            width=self._pixels(disc.thickness) if disc.stroke is not None else 0,
        )

    def _line(self, path: tuple[Point, ...], stroke: str, thickness: float) -> None:
        """Draw a line with round ends and corners."""
        width = self._pixels(thickness)
        points = [self._at(point) for point in path]
        self._draw.line(points, fill=stroke, width=width)
        if width > 2:
            for x, y in points:
                self._draw.ellipse((x - width / 2, y - width / 2, x + width / 2, y + width / 2), fill=stroke)

    def _label(self, label: Label) -> None:
        size = self._pixels(label.size)
        text = to_single_line(label.text)
        if label.mono:
            self._columns(label, text, size)
            return
        pieces = list(self._split(text, size, bold=label.bold))
        widths = [font.getlength(piece) * size / font_size for piece, font, font_size in pieces]
        x, y = self._at((label.x, label.y + BASELINE * label.size))
        x -= {"start": 0.0, "middle": 0.5, "end": 1.0}[label.anchor] * sum(widths)
        for (piece, font, font_size), width in zip(pieces, widths, strict=True):
            self._piece(x, y, piece, font, font_size, size, label.fill)
            x += width

    def _columns(self, label: Label, text: str, size: int) -> None:
        """Draw letter by letter on a grid of columns, so that lines align in any mix of fonts."""
        left, y = self._at((label.x, label.y + BASELINE * label.size))
        column = 0
        for letter in text:
            for piece, font, font_size in self._split(letter, size, mono=True):
                self._piece(left + 0.6 * size * column, y, piece, font, font_size, size, label.fill)
            column += display_width(letter)

    def _split(
        self, text: str, size: int, *, bold: bool = False, mono: bool = False
    ) -> "Iterator[tuple[str, FreeTypeFont, int]]":
        chain = font_chain(bold, mono) if self._installed_fonts else (None,)
        return split_by_font(text, chain, size)

    def _piece(self, x: float, y: float, text: str, font: Any, font_size: int, size: int, fill: str) -> None:
        if font_size == size:
            self._draw.text((x, y), text, font=font, fill=fill, anchor="ls", embedded_color=True)
            return
        pil = import_pillow()  # a bitmap font is drawn at its own size, then scaled
        box = font.getbbox(text, anchor="ls")
        if box[2] <= box[0] or box[3] <= box[1]:
            return
        stamp = pil.Image.new("RGBA", (round(box[2] - box[0]), round(box[3] - box[1])))
        pen = pil.ImageDraw.Draw(stamp)
        pen.text((-box[0], -box[1]), text, font=font, fill=fill, anchor="ls", embedded_color=True)
        share = size / font_size
        small = stamp.resize((max(round(stamp.width * share), 1), max(round(stamp.height * share), 1)))
        self._image.paste(small, (round(x + box[0] * share), round(y + box[1] * share)), small)


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
SANS_FONTS = (
    "NotoSans-Regular",
    "DejaVuSans",
    "LiberationSans-Regular",
    "Arial",
    "Helvetica",
    "SFNS",
    "segoeui",
    "arial",
)
BOLD_FONTS = ("NotoSans-Bold", "DejaVuSans-Bold", "LiberationSans-Bold", "Arial Bold", "segoeuib", "arialbd")
MONO_FONTS = (
    "DejaVuSansMono",
    "NotoSansMono-Regular",
    "LiberationMono-Regular",
    "Menlo",
    "SFNSMono",
    "consola",
    "cour",
)
CJK_FONTS = (
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
EMOJI_FONTS = ("NotoColorEmoji", "Apple Color Emoji", "seguiemj", "NotoEmoji-Regular", "Symbola")
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


def find_font(names: Sequence[str]) -> Path | None:
    fonts = installed_fonts()
    return next((fonts[name] for name in names if name in fonts), None)


def describe_missing_fonts() -> str | None:
    """Name the scripts that no installed font covers and how to install one. None if nothing is missing."""
    missing = [
        name
        for name, fonts in (
            ("Chinese, Japanese and Korean", CJK_FONTS),
            ("emoji", EMOJI_FONTS),
            ("box drawing", MONO_FONTS),
        )
        if find_font(fonts) is None
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
    preferred = find_font(MONO_FONTS) if mono else find_font(BOLD_FONTS) if bold else None
    paths = [preferred, find_font(SANS_FONTS), find_font(EMOJI_FONTS), find_font(CJK_FONTS), find_font(MONO_FONTS)]
    return tuple(dict.fromkeys(path for path in paths if path is not None)) or (None,)


def _belongs_to_previous(letter: str) -> bool:
    """Return whether a character stays with the one before it: joiners, variation selectors, skin tones, spaces."""
    return letter in (" ", EMOJI_JOINER) or "\ufe00" <= letter <= "\ufe0f" or "\U0001f3fb" <= letter <= "\U0001f3ff"


@lru_cache(maxsize=8192)
def _has(path: Path | None, letter: str) -> bool:
    """Return whether the font draws the character differently from a missing one."""
    if path is None:
        return True
    if letter.isascii() and path.stem in EMOJI_FONTS:
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
