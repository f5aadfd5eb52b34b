"""A drawing as plain data: a few kinds of shapes, which the SVG and the pixels of a picture are both made from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never
from xml.sax.saxutils import escape, quoteattr

from turnwise.report.formatting import display_width, to_single_line

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]

BASELINE = 0.35
"""How far below the middle of a line its letters stand, in font sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rect:
    """A rectangle, its corners rounded by `radius`."""

    x: float
    y: float
    width: float
    height: float
    fill: str | None = None
    stroke: str | None = None
    thickness: float = 1.0
    radius: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ellipse:
    """An ellipse around (x, y)."""

    x: float
    y: float
    rx: float
    ry: float
    fill: str | None = None
    stroke: str | None = None
    thickness: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Polylines:
    """Strokes of one pen, each through its points."""

    paths: tuple[tuple[Point, ...], ...]
    stroke: str
    thickness: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Polygon:
    """A filled polygon."""

    points: tuple[Point, ...]
    fill: str
    stroke: str | None = None
    thickness: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A line of text whose middle lies at height y."""

    x: float
    y: float
    text: str
    size: float
    fill: str
    anchor: Anchor = "middle"
    bold: bool = False
    mono: bool = False


Shape = Rect | Ellipse | Polylines | Polygon | Label


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Shapes in the order in which they are painted, on a field of pixels. `title` is what it says to the blind."""

    width: float
    height: float
    shapes: Sequence[Shape]
    title: str
    margin: float = 0.0
    """Room on every side, around width and height, so that no pen is cut at the edge."""


SANS = "system-ui, 'Noto Sans', 'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif, 'Noto Color Emoji'"
MONO = "'DejaVu Sans Mono', Menlo, Consolas, 'Noto Sans Mono CJK SC', monospace, 'Noto Color Emoji'"
MONO_ADVANCE = 0.6
"""Of a letter of fixed width, in font sizes."""


def drawing_to_svg(drawing: Drawing) -> str:
    margin = drawing.margin
    width, height = _n(drawing.width + 2 * margin), _n(drawing.height + 2 * margin)
    field = f"{_n(-margin)} {_n(-margin)} {width} {height}"
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{field}" width="{width}" height="{height}" role="img" '
        f'aria-label={quoteattr(to_single_line(drawing.title))} font-family="{SANS}" stroke-linejoin="round" '
        'stroke-linecap="round">'
    )
    return "".join([opening, *map(_element, drawing.shapes), "</svg>\n"])


def _element(shape: Shape) -> str:
    match shape:
        case Rect():
            place = f'x="{_n(shape.x)}" y="{_n(shape.y)}" width="{_n(shape.width)}" height="{_n(shape.height)}"'
            round_ = f' rx="{_n(shape.radius)}"' if shape.radius else ""
            return f"<rect {place}{round_}{_paint(shape.fill, shape.stroke, shape.thickness)}/>"
        case Ellipse():
            place = f'cx="{_n(shape.x)}" cy="{_n(shape.y)}" rx="{_n(shape.rx)}" ry="{_n(shape.ry)}"'
            return f"<ellipse {place}{_paint(shape.fill, shape.stroke, shape.thickness)}/>"
        case Polylines():
            way = "".join(_way(path) for path in shape.paths)
            return f'<path d="{way}"{_paint(None, shape.stroke, shape.thickness)}/>'
        case Polygon():
            return f'<path d="{_way(shape.points)}Z"{_paint(shape.fill, shape.stroke, shape.thickness)}/>'
        case Label():
            return _text(shape)
        case _:
            assert_never(shape)


def _text(label: Label) -> str:
    """A line of fixed width is held to its width, so that its columns stay under each other in any font."""
    look = ' font-weight="600"' if label.bold else ""
    if label.mono and label.text:
        length = _n(MONO_ADVANCE * label.size * display_width(label.text))
        look += f' font-family="{MONO}" xml:space="preserve" textLength="{length}" lengthAdjust="spacingAndGlyphs"'
    return (
        f'<text x="{_n(label.x)}" y="{_n(label.y + BASELINE * label.size)}" text-anchor="{label.anchor}" '
        f'font-size="{_n(label.size)}" fill="{label.fill}"{look}>{escape(to_single_line(label.text))}</text>'
    )


def _way(points: tuple[Point, ...]) -> str:
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)


def _paint(fill: str | None, stroke: str | None, thickness: float) -> str:
    inside = f' fill="{fill or "none"}"'
    return inside if stroke is None else f'{inside} stroke="{stroke}" stroke-width="{_n(thickness)}"'


def _n(value: float) -> str:
    """A tenth of a pixel is fine enough; 3.0 is written 3."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
