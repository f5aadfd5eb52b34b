"""Drawings as data (a few shapes), from which both SVG and pixels are made, and their conversion to SVG."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never
from xml.sax.saxutils import escape, quoteattr

from turnwise.pictures.text import display_width, to_single_line

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]

BASELINE = 0.35
"""Distance of the baseline below the middle of a line of text, in font sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rect:
    """A rectangle with corners rounded by `radius`."""

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
    """An ellipse centred at (x, y)."""

    x: float
    y: float
    rx: float
    ry: float
    fill: str | None = None
    stroke: str | None = None
    thickness: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Polylines:
    """Several lines of one stroke, each through its points."""

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
    """A line of text, vertically centred at y."""

    x: float
    y: float
    text: str
    size: float
    fill: str
    anchor: Anchor = "middle"
    bold: bool = False
    mono: bool = False


Shape = Rect | Ellipse | Polylines | Polygon | Label
SizedShapes = tuple[float, float, list[Shape]]
"""Width, height, shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Shapes in painting order. `title` is the text for screen readers."""

    width: float
    height: float
    shapes: Sequence[Shape]
    title: str
    margin: float = 0.0
    """Space on every side in addition to width and height, so that no stroke is cut off."""


SANS = "system-ui, 'Noto Sans', 'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif, 'Noto Color Emoji'"
MONO = "'DejaVu Sans Mono', Menlo, Consolas, 'Noto Sans Mono CJK SC', monospace, 'Noto Color Emoji'"
MONO_ADVANCE = 0.6
"""Width of a monospace character, in font sizes."""


def drawing_to_svg(drawing: Drawing) -> str:
    margin = drawing.margin
    width, height = _n(drawing.width + 2 * margin), _n(drawing.height + 2 * margin)
    view_box = f"{_n(-margin)} {_n(-margin)} {width} {height}"
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{view_box}" width="{width}" height="{height}" role="img" '
        f'aria-label={quoteattr(to_single_line(drawing.title))} font-family="{SANS}" stroke-linejoin="round" '
        'stroke-linecap="round">'
    )
    return "".join([start, *map(_element, drawing.shapes), "</svg>\n"])


def _element(shape: Shape) -> str:
    match shape:
        case Rect():
            geometry = f'x="{_n(shape.x)}" y="{_n(shape.y)}" width="{_n(shape.width)}" height="{_n(shape.height)}"'
            corners = f' rx="{_n(shape.radius)}"' if shape.radius else ""
            return f"<rect {geometry}{corners}{_paint(shape.fill, shape.stroke, shape.thickness)}/>"
        case Ellipse():
            geometry = f'cx="{_n(shape.x)}" cy="{_n(shape.y)}" rx="{_n(shape.rx)}" ry="{_n(shape.ry)}"'
            return f"<ellipse {geometry}{_paint(shape.fill, shape.stroke, shape.thickness)}/>"
        case Polylines():
            data = "".join(_path_data(path) for path in shape.paths)
            return f'<path d="{data}"{_paint(None, shape.stroke, shape.thickness)}/>'
        case Polygon():
            return f'<path d="{_path_data(shape.points)}Z"{_paint(shape.fill, shape.stroke, shape.thickness)}/>'
        case Label():
            return _text(shape)
        case _:
            assert_never(shape)


def _text(label: Label) -> str:
    """Give monospace text a fixed width, so that columns align in any font."""
    look = ' font-weight="600"' if label.bold else ""
    if label.mono and label.text:
        length = _n(MONO_ADVANCE * label.size * display_width(label.text))
        look += f' font-family="{MONO}" xml:space="preserve" textLength="{length}" lengthAdjust="spacingAndGlyphs"'
    return (
        f'<text x="{_n(label.x)}" y="{_n(label.y + BASELINE * label.size)}" text-anchor="{label.anchor}" '
        f'font-size="{_n(label.size)}" fill="{label.fill}"{look}>{escape(to_single_line(label.text))}</text>'
    )


def _path_data(points: tuple[Point, ...]) -> str:
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)


def _paint(fill: str | None, stroke: str | None, thickness: float) -> str:
    inside = f' fill="{fill or "none"}"'
    return inside if stroke is None else f'{inside} stroke="{stroke}" stroke-width="{_n(thickness)}"'


def _n(value: float) -> str:
    """Write with one decimal, and 3.0 as 3."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
