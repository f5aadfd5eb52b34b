"""The image of a state that a model sees: the cells alone, a whole number of pixels each, without notes.

Each cell of a gridworld is drawn once, apart from its neighbours: equal cells have equal pixels wherever they are, and
images are put together ten times as fast as they are drawn.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

from turnwise.core.image_encoding import Image, import_pillow
from turnwise.core.messages import Picture
from turnwise.pictures.gridworlds import CELL, draw_cell, draw_ground, is_icy
from turnwise.pictures.picture import draw_cells, is_gridworld
from turnwise.pictures.raster import drawing_to_image
from turnwise.pictures.shapes import Drawing, SizedShapes

if TYPE_CHECKING:
    from PIL.Image import Image as Pixels

Rows = tuple[tuple[str, ...], ...]


def draw_observation(picture: Picture, cell_pixels: int) -> Image:
    """Draw the cells at `cell_pixels` on a side. Equal states give equal bytes on every machine."""
    return _draw(picture.rows, picture.caption, cell_pixels)


@lru_cache(maxsize=4096)
def _draw(rows: Rows, caption: str, cell_pixels: int) -> Image:
    """Cached: members of a group start from the same state."""
    if is_gridworld(rows, caption):
        return Image(_join_cells(rows, cell_pixels))
    return Image(_rasterize(draw_cells([list(row) for row in rows], caption), cell_pixels))


def _rasterize(sized: SizedShapes, cell_pixels: int) -> "Pixels":
    width, height, shapes = sized
    drawing = Drawing(width=width, height=height, shapes=shapes, title="")
    return drawing_to_image(drawing, cell_pixels / CELL, installed_fonts=False)


def _join_cells(rows: Rows, cell_pixels: int) -> "Pixels":
    width, icy = max(map(len, rows)), is_icy(rows)
    image = import_pillow().Image.new("RGB", (width * cell_pixels, len(rows) * cell_pixels))
    for row_number, row in enumerate(rows):
        for column, name in enumerate([*row, *["empty"] * (width - len(row))]):
            image.paste(_draw_cell(name, icy, cell_pixels), (column * cell_pixels, row_number * cell_pixels))
    return image


@lru_cache(maxsize=1024)
def _draw_cell(name: str, icy: bool, cell_pixels: int) -> "Pixels":
    shapes = [*draw_ground(CELL, CELL, icy=icy), *draw_cell(name, 0.0, 0.0)]
    return _rasterize((CELL, CELL, shapes), cell_pixels)
