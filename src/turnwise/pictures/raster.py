"""Drawings as pixels with Pillow, supersampled for smooth edges.

Not with resvg (the extra `svg`): images need Pillow anyway, resvg saves a quarter of the time (14 against 18 ms for a
board), and models that were trained on these pixels would see others.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, assert_never

from turnwise.pictures.fonts import font_chain, split_by_font
from turnwise.pictures.image import import_pillow
from turnwise.pictures.shapes import BASELINE, Drawing, Ellipse, Label, Point, Polygon, Polylines, Rect, Shape
from turnwise.pictures.text import display_width, to_single_line

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
