"""A drawing as plain data: a few kinds of shapes, which the SVG and the pixels of a picture are both made from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]

BASELINE = 0.35
"""How far below the middle of a line its letters stand, in font sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
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
class Disc:
    """An ellipse around (x, y)."""

    x: float
    y: float
    rx: float
    ry: float
    fill: str | None = None
    stroke: str | None = None
    thickness: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Strokes of one pen, each through its points."""

    paths: tuple[tuple[Point, ...], ...]
    stroke: str
    thickness: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
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


Shape = Box | Disc | Lines | Patch | Label


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Shapes in the order in which they are painted, on a field of pixels. `title` is what it says to the blind."""

    width: float
    height: float
    shapes: Sequence[Shape]
    title: str
    margin: float = 0.0
    """Room on every side, around width and height, so that no pen is cut at the edge."""
