"""Pictures of a few shapes: random ones, their SVG, and reading untrusted SVG into the same form.

Only a small, closed part of SVG is read: shapes and groups with plain attributes. Nothing that refers to a file, a
style, a filter or another element is among it, so nothing of the kind reaches the renderer.
"""

import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

CANVAS = 64
"""Width and height of the picture, in SVG units."""
NAMESPACE = "http://www.w3.org/2000/svg"
PALETTE = ("red", "green", "blue", "orange", "purple", "black", "gray", "gold")
NUMBERS: dict[str, tuple[str, ...]] = {
    "rect": ("x", "y", "width", "height", "rx", "ry"),
    "circle": ("cx", "cy", "r"),
    "ellipse": ("cx", "cy", "rx", "ry"),
    "line": ("x1", "y1", "x2", "y2"),
    "polyline": ("points",),
    "polygon": ("points",),
    "path": ("d",),
    "g": (),
}
"""Attributes with numbers, by element."""
PAINT = ("fill", "stroke", "stroke-width", "opacity", "fill-opacity", "stroke-opacity", "fill-rule", "stroke-linejoin")
IGNORED = ("id", "class", "version", "width", "height", "viewBox", "preserveAspectRatio", "xmlns")
"""Attributes of the root that the renderer sets itself."""
MAX_CHARS = 2000
"""Characters of an answer."""
MAX_ELEMENTS, MAX_DEPTH, MAX_VALUE, MAX_NUMBER = 64, 8, 1000, 10_000.0
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
PAINT_VALUE = re.compile(r"[#\w.,%() +-]{1,60}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    tag: str
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def fill(self) -> str:
        return self.attributes.get("fill", "black")

    @property
    def box(self) -> tuple[float, float, float, float] | None:
        """Left, top, right and bottom; None for an element whose outline is not that of its numbers."""
        read = {name: _number(self.attributes.get(name, "0")) for name in NUMBERS[self.tag]}
        match self.tag:
            case "rect":
                return read["x"], read["y"], read["x"] + read["width"], read["y"] + read["height"]
            case "circle" | "ellipse":
                rx, ry = (read["r"], read["r"]) if self.tag == "circle" else (read["rx"], read["ry"])
                return read["cx"] - rx, read["cy"] - ry, read["cx"] + rx, read["cy"] + ry
            case "polygon":
                values = [float(value) for value in NUMBER.findall(self.attributes.get("points", ""))]
                across, down = values[0::2], values[1::2]
                return (min(across), min(down), max(across), max(down)) if down else None
            case _:
                return None

    @property
    def kind(self) -> str:
        return "ellipse" if self.tag == "circle" else self.tag


def random_scene(rng: random.Random, *, min_shapes: int, max_shapes: int) -> list[Shape]:
    """Draw shapes of different colours, each a sixth to a half of the canvas on a side."""
    colours = rng.sample(PALETTE, rng.randint(min_shapes, max_shapes))
    return [_random_shape(rng, colour) for colour in colours]


def _random_shape(rng: random.Random, fill: str) -> Shape:
    width, height = (2 * rng.randint(CANVAS // 12, CANVAS // 4) for _ in range(2))
    x, y = rng.randint(0, CANVAS - width), rng.randint(0, CANVAS - height)
    match rng.choice(("rect", "circle", "ellipse", "polygon")):
        case "rect":
            values: dict[str, object] = {"x": x, "y": y, "width": width, "height": height}
            return Shape(tag="rect", attributes=_texts(values, fill))
        case "circle":
            radius = min(width, height) // 2
            return Shape(tag="circle", attributes=_texts({"cx": x + radius, "cy": y + radius, "r": radius}, fill))
        case "ellipse":
            values = {"cx": x + width // 2, "cy": y + height // 2, "rx": width // 2, "ry": height // 2}
            return Shape(tag="ellipse", attributes=_texts(values, fill))
        case _:
            points = f"{x},{y + height} {x + width // 2},{y} {x + width},{y + height}"
            return Shape(tag="polygon", attributes=_texts({"points": points}, fill))


def _texts(values: Mapping[str, object], fill: str) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()} | {"fill": fill}


def format_svg(shapes: list[Shape]) -> str:
    """Return the shapes as an SVG file of the canvas's size."""
    elements = "".join(
        f"<{shape.tag} {' '.join(f'{name}={quoteattr(value)}' for name, value in shape.attributes.items())}/>"
        for shape in shapes
    )
    return f'<svg xmlns="{NAMESPACE}" viewBox="0 0 {CANVAS} {CANVAS}">{elements}</svg>'


def read_svg(text: str) -> list[Shape]:
    """Return the shapes of an SVG file. Raises ValueError, with a reason for the agent, for anything else."""
    if len(text) > MAX_CHARS:
        raise ValueError(f"at most {MAX_CHARS} characters of SVG")
    if "<!" in text or "<?" in text:
        raise ValueError("write the svg element only, without <! and <?")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise ValueError(f"not well-formed XML ({error})") from error
    if _tag(root) != "svg":
        raise ValueError("the outermost element must be svg")
    shapes: list[Shape] = []
    paint: Mapping[str, str] = _paint(root, IGNORED)
    pending = [(child, 1, paint) for child in reversed(root)]
    while pending:
        element, depth, inherited = pending.pop()
        if depth > MAX_DEPTH or len(shapes) + len(pending) > MAX_ELEMENTS:
            raise ValueError(f"at most {MAX_ELEMENTS} elements, nested at most {MAX_DEPTH} deep")
        shape = _read_shape(element, inherited)
        if shape.tag == "g":
            pending += [(child, depth + 1, shape.attributes) for child in reversed(element)]
        else:
            shapes.append(shape)
    return shapes


def _read_shape(element: ElementTree.Element, inherited: Mapping[str, str]) -> Shape:
    tag = _tag(element)
    if tag not in NUMBERS:
        raise ValueError(f"the element {tag[:30]} is not supported: use {', '.join(NUMBERS)}")
    numbers = {name: element.attrib[name] for name in NUMBERS[tag] if name in element.attrib}
    for name, value in numbers.items():
        _check_numbers(name, value)
    return Shape(tag=tag, attributes={**inherited, **numbers, **_paint(element, (*NUMBERS[tag], "id", "class"))})


def _tag(element: ElementTree.Element) -> str:
    return str(element.tag).removeprefix(f"{{{NAMESPACE}}}")


def _paint(element: ElementTree.Element, others: tuple[str, ...]) -> dict[str, str]:
    """Return the attributes of colour and stroke; refuse those that are neither these nor `others`."""
    for name, value in element.attrib.items():
        if name not in (*PAINT, *others):
            raise ValueError(f"the attribute {name[:30]} is not supported")
        if name in PAINT and (not PAINT_VALUE.fullmatch(value) or "url" in value.lower()):
            raise ValueError(f"the value of {name} is not a colour or number")
        if name == "stroke-width":
            _check_numbers(name, value)
    return {name: value for name, value in element.attrib.items() if name in PAINT}


def _check_numbers(name: str, value: str) -> None:
    if len(value) > MAX_VALUE or any(not abs(float(number)) <= MAX_NUMBER for number in NUMBER.findall(value)):
        raise ValueError(f"the value of {name} is too long or has too large a number")


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0
