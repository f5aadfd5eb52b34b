"""A small web page as an image: a header, then blocks from top to bottom, with buttons that show their names.

Texts are untrusted. They are measured in the font that draws them, wrapped, and cut after a few lines, so that nothing
leaves the page or covers its neighbour.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import ceil
from typing import TYPE_CHECKING

from turnwise.pictures.glyphs import paste_text, text_width
from turnwise.pictures.image import Image, import_pillow
from turnwise.pictures.observation import StateImage
from turnwise.pictures.raster import drawing_to_image
from turnwise.pictures.shapes import BASELINE, Drawing, Ellipse, Label, Polylines, Rect, Shape
from turnwise.pictures.text import wrap

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

PAGE_WIDTH = 448
"""Width of the layout in units: as many pixels by default."""
HEIGHT_STEP = 28
"""Heights are multiples of it in pixels: one token of Qwen2.5-VL, whose processor then does not rescale the page."""
MAX_LINES = 4
"""Lines of a text; the rest is cut."""
MARGIN, GAP = 14, 8
TEXT_SIZE, TITLE_SIZE = 13, 17
LINE_HEIGHTS = {TEXT_SIZE: 18, TITLE_SIZE: 23}
"""Distance of lines by font size."""
PADDING, BUTTON_FRAME = 8, 3
"""Space on both sides of a button's name, and above and below it."""
CHECK_WIDTH = 15
"""Width of a selected button's check mark, with the space after it."""
COLUMN = 58
"""Width of the left column: labels of button rows, buttons of items."""
HEADER_HEIGHT = 30

INK, FAINT, RULE, PAPER = "#1b2430", "#5a6675", "#d3d9e0", "#ffffff"
HEADER_FILL, BUTTON_FILL, BUTTON_EDGE, SELECTED_FILL, MAIN_FILL, PRICE = (
    "#1d3b5e",
    "#e9eef5",
    "#6b7a8d",
    "#1d6b3a",
    "#f5b335",
    "#a3260a",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    text: str
    price: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchField:
    hint: str
    """Grey text in the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buttons:
    """Buttons side by side, in several rows if necessary."""

    names: tuple[str, ...]
    label: str = ""
    """Text on the left."""
    selected: str | None = None
    """Name of the button with a check mark."""
    main: str | None = None
    """Name of the button that stands out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A line of a list: a button, a text and a price."""

    button: str
    text: str
    price: str


Block = Heading | Paragraph | SearchField | Buttons | Item
Blocks = tuple[Block, ...]


def draw_page(title: str, blocks: Blocks, width: int) -> StateImage:
    """Return the image of a page, `width` pixels wide and as high as its contents. Equal pages give equal bytes."""
    return StateImage(_draw_page_png, title, blocks, width)


@lru_cache(maxsize=1024)
def _draw_page_png(title: str, blocks: Blocks, width: int) -> bytes:
    return Image(page_to_image(lay_out_page(title, blocks, HEIGHT_STEP * PAGE_WIDTH / width), width)).data


def page_to_image(page: Drawing, width: int) -> "PillowImage":
    """Draw the shapes, then the texts, which are above all shapes."""
    shapes = [shape for shape in page.shapes if not isinstance(shape, Label)]
    image = drawing_to_image(replace(page, shapes=shapes), width / PAGE_WIDTH, PAPER, sharpen=False)
    scale, color = image.width / PAGE_WIDTH, import_pillow().ImageColor.getrgb
    for label in page.shapes:
        if isinstance(label, Label):
            left = label.x - (label.size * text_width(label.text) / 2 if label.anchor == "middle" else 0)
            x, y = scale * left, scale * (label.y + BASELINE * label.size)
            paste_text(image, x, y, label.text, size=scale * label.size, fill=color(label.fill))
    return image


def lay_out_page(title: str, blocks: Blocks, height_step: float = 1.0) -> Drawing:
    """Arrange the blocks from top to bottom. The height is a multiple of `height_step`."""
    shapes: list[Shape] = [Rect(x=0, y=0, width=PAGE_WIDTH, height=HEADER_HEIGHT, fill=HEADER_FILL)]
    shown = _fit(title, PAGE_WIDTH - 2 * MARGIN, TITLE_SIZE, lines=1)[0]
    shapes.append(_label(shown, MARGIN, HEADER_HEIGHT / 2, size=TITLE_SIZE, fill=PAPER))
    y = float(HEADER_HEIGHT + GAP)
    for block in blocks:
        drawn, bottom = _draw_block(block, y)
        shapes += drawn
        y = bottom + GAP
    return Drawing(width=PAGE_WIDTH, height=ceil(y / height_step) * height_step, shapes=shapes, title=title)


Drawn = tuple[list[Shape], float]
"""Shapes and the y of their bottom."""


def _draw_block(block: Block, y: float) -> Drawn:
    match block:
        case Heading():
            return _draw_heading(block, y)
        case Paragraph():
            return _draw_text(block.text, MARGIN, y, PAGE_WIDTH - 2 * MARGIN)
        case SearchField():
            return _draw_search_field(block, y)
        case Buttons():
            return _draw_buttons(block, y)
        case Item():
            return _draw_item(block, y)


def _draw_heading(heading: Heading, y: float) -> Drawn:
    shapes, y = _draw_text(heading.text, MARGIN, y, PAGE_WIDTH - 2 * MARGIN, size=TITLE_SIZE)
    if not heading.price:
        return shapes, y
    price, y = _draw_text(heading.price, MARGIN, y, PAGE_WIDTH - 2 * MARGIN, size=TITLE_SIZE, fill=PRICE)
    return [*shapes, *price], y


def _draw_search_field(field: SearchField, y: float) -> Drawn:
    """Draw the field with a magnifying glass."""
    height, middle, width = 34, y + 17, PAGE_WIDTH - 2 * MARGIN
    lens = MARGIN + 18
    shapes: list[Shape] = [
        Rect(x=MARGIN, y=y, width=width, height=height, fill=PAPER, stroke=HEADER_FILL, thickness=2, radius=6),
        Ellipse(x=lens, y=middle - 2, rx=6, ry=6, stroke=FAINT, thickness=2),
        Polylines(paths=(((lens + 4.5, middle + 2.5), (lens + 9, middle + 7)),), stroke=FAINT, thickness=2),
    ]
    hint = _fit(field.hint, width - 50, TEXT_SIZE, lines=1)[0]
    return [*shapes, _label(hint, MARGIN + 38, middle, fill=FAINT)], y + height


def _draw_item(item: Item, y: float) -> Drawn:
    """Draw an item below a thin line; its button, first line and price are level."""
    rule = Rect(x=MARGIN, y=y, width=PAGE_WIDTH - 2 * MARGIN, height=1, fill=RULE)
    y += GAP - 3
    button = _Button.of(item.button, COLUMN)
    top = y + BUTTON_FRAME
    price = _fit(item.price, 90, TEXT_SIZE, lines=1)[0]
    price_left = PAGE_WIDTH - MARGIN - _width(price)
    text_left = MARGIN + COLUMN + GAP
    text, bottom = _draw_text(item.text, text_left, top, price_left - GAP - text_left)
    label = _label(price, price_left, top + LINE_HEIGHTS[TEXT_SIZE] / 2, fill=PRICE)
    return [rule, *button.draw(MARGIN, y), *text, label], max(y + button.height, bottom) - 2


def _draw_buttons(row: Buttons, y: float) -> Drawn:
    shapes: list[Shape] = []
    left, label_bottom = float(MARGIN), y
    if row.label:
        shapes, label_bottom = _draw_text(row.label, MARGIN, y + BUTTON_FRAME, COLUMN)
        left += COLUMN + GAP
    x, height = left, 0.0
    for name in row.names:
        button = _Button.of(
            name, PAGE_WIDTH - MARGIN - left, is_selected=name == row.selected, is_main=name == row.main
        )
        if x > left and x + button.width > PAGE_WIDTH - MARGIN:
            x, y, height = left, y + height + GAP - 2, 0.0
        shapes += button.draw(x, y)
        x, height = x + button.width + GAP, max(height, button.height)
    return shapes, max(label_bottom, y + height)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Button:
    lines: Sequence[str]
    width: float
    height: float
    is_selected: bool
    is_main: bool

    @classmethod
    def of(cls, name: str, max_width: float, *, is_selected: bool = False, is_main: bool = False) -> "_Button":
        """Lay out a button; its name wraps if it is wider than `max_width`."""
        frame = 2 * PADDING + (CHECK_WIDTH if is_selected else 0)
        lines = _fit(name, max_width - frame, TEXT_SIZE, MAX_LINES)
        width = ceil(max(map(_width, lines))) + frame
        height = len(lines) * LINE_HEIGHTS[TEXT_SIZE] + 2 * BUTTON_FRAME
        return cls(lines=lines, width=max(width, 28), height=height, is_selected=is_selected, is_main=is_main)

    def draw(self, x: float, y: float) -> list[Shape]:
        fill = SELECTED_FILL if self.is_selected else MAIN_FILL if self.is_main else BUTTON_FILL
        ink = PAPER if self.is_selected else INK
        box = Rect(  # the stroke is centred on the edge
            x=x + 0.5, y=y + 0.5, width=self.width - 1, height=self.height - 1, fill=fill, stroke=BUTTON_EDGE, radius=5
        )
        shapes: list[Shape] = [box]
        center = x + self.width / 2
        if self.is_selected:
            center += CHECK_WIDTH / 2
            left, middle = x + PADDING - 1, y + self.height / 2
            check = ((left, middle), (left + 3.5, middle + 4), (left + 10, middle - 4.5))
            shapes.append(Polylines(paths=(check,), stroke=ink, thickness=2))
        pitch = LINE_HEIGHTS[TEXT_SIZE]
        return shapes + [
            _label(line, center, y + BUTTON_FRAME + pitch * (number + 0.5), fill=ink, center=True)
            for number, line in enumerate(self.lines)
        ]


def _draw_text(text: str, x: float, y: float, width: float, *, size: int = TEXT_SIZE, fill: str = INK) -> Drawn:
    lines, pitch = _fit(text, width, size, MAX_LINES), LINE_HEIGHTS[size]
    labels = [_label(line, x, y + pitch * (number + 0.5), size=size, fill=fill) for number, line in enumerate(lines)]
    return list(labels), y + pitch * len(lines)


def _label(text: str, x: float, y: float, *, size: int = TEXT_SIZE, fill: str = INK, center: bool = False) -> Label:
    return Label(x=x, y=y, text=text, size=size, fill=fill, anchor="middle" if center else "start")


def _fit(text: str, width: float, size: int, lines: int) -> list[str]:
    """Wrap text into lines of at most `width` units."""
    return wrap(text, int(width), lines, partial(_width, size=size))


def _width(text: str, size: int = TEXT_SIZE) -> float:
    return size * text_width(text)
