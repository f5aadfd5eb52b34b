"""The image of a state that a model sees: the cells alone, a whole number of pixels each, without notes."""

from functools import lru_cache

from turnwise.core.image_encoding import Image
from turnwise.core.messages import Picture
from turnwise.pictures.gridworlds import CELL
from turnwise.pictures.picture import draw_cells
from turnwise.pictures.raster import drawing_to_image
from turnwise.pictures.shapes import Drawing


def draw_observation(picture: Picture, cell_pixels: int) -> Image:
    """Draw the cells at `cell_pixels` on a side. Equal states give equal bytes on every machine."""
    return _draw(picture.rows, picture.caption, cell_pixels)


@lru_cache(maxsize=4096)
def _draw(rows: tuple[tuple[str, ...], ...], caption: str, cell_pixels: int) -> Image:
    """Cached: members of a group start from the same state."""
    width, height, shapes = draw_cells([list(row) for row in rows], caption)
    drawing = Drawing(width=width, height=height, shapes=shapes, title="")
    return Image(drawing_to_image(drawing, cell_pixels / CELL, installed_fonts=False))
