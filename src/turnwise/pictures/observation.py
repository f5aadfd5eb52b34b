"""The image of a state that a model sees: the cells alone, a whole number of pixels each, without notes.

Each cell of a gridworld is drawn once, apart from its neighbours: equal cells have equal pixels wherever they are, and
images are put together ten times as fast as they are drawn.
"""

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from turnwise.core.messages import ImagePart, Picture
from turnwise.pictures.gridworlds import CELL, draw_cell, draw_ground, is_icy
from turnwise.pictures.image import Image, import_pillow
from turnwise.pictures.picture import draw_cells, is_gridworld
from turnwise.pictures.raster import drawing_to_image
from turnwise.pictures.shapes import Drawing, SizedShapes

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

Rows = tuple[tuple[str, ...], ...]


class StateImage(ImagePart):
    """Image of a state, drawn when its bytes are first read: of several actions, only the last one's is shown.

    `draw` returns the PNG file of its arguments. It is called at every read, so it should be cached.
    """

    __slots__ = ("_arguments", "_draw")
    _draw: Callable[..., bytes]
    _arguments: tuple[Hashable, ...]

    def __init__(self, draw: Callable[..., bytes], *arguments: Hashable) -> None:
        object.__setattr__(self, "_draw", draw)
        object.__setattr__(self, "_arguments", arguments)

    @property
    def data(self) -> bytes:
        return self._draw(*self._arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return StateImage, (self._draw, *self._arguments)


def draw_observation(picture: Picture, cell_pixels: int) -> StateImage:
    """Return an image of the cells, `cell_pixels` on a side. Equal states give equal bytes on every machine."""
    return StateImage(_draw, picture.rows, picture.caption, cell_pixels)


@lru_cache(maxsize=4096)
def _draw(rows: Rows, caption: str, cell_pixels: int) -> bytes:
    """Cached: members of a group start from the same state."""
    if is_gridworld(rows, caption):
        return Image(_join_cells(rows, cell_pixels)).data
    return Image(_rasterize(draw_cells([list(row) for row in rows], caption), cell_pixels)).data


def _rasterize(sized: SizedShapes, cell_pixels: int) -> "PillowImage":
    width, height, shapes = sized
    drawing = Drawing(width=width, height=height, shapes=shapes, title="")
    return drawing_to_image(drawing, cell_pixels / CELL, installed_fonts=False)


def _join_cells(rows: Rows, cell_pixels: int) -> "PillowImage":
    width, icy = max(map(len, rows)), is_icy(rows)
    image = import_pillow().Image.new("RGB", (width * cell_pixels, len(rows) * cell_pixels))
    for row_number, row in enumerate(rows):
        for column, name in enumerate([*row, *["empty"] * (width - len(row))]):
            image.paste(_draw_cell(name, icy, cell_pixels), (column * cell_pixels, row_number * cell_pixels))
    return image


@lru_cache(maxsize=1024)
def _draw_cell(name: str, icy: bool, cell_pixels: int) -> "PillowImage":
    shapes = [*draw_ground(CELL, CELL, icy=icy), *draw_cell(name, 0.0, 0.0)]
    return _rasterize((CELL, CELL, shapes), cell_pixels)
