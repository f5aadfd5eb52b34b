"""A trajectory's states as files for papers and slides: a strip (PNG) and an animation (GIF or animated PNG).

Needs Pillow: pip install 'turnwise[pictures]'.
"""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from turnwise.report.pictures.letters import clipped, shown
from turnwise.report.pictures.picture import NOTE_INK, NOTE_SIZE, picture_drawing
from turnwise.report.pictures.shapes import Drawing, Label
from turnwise.report.pictures.shapes_raster import PAPER, pillow, to_image

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_STATES = 64
"""Of one file; of a longer trajectory the first and the last, evenly thinned between."""
HEADING = 22.0
FRAME_MS, LAST_MS = 700, 2200
PER_ROW = 8
Animation = Literal["gif", "png"]


def trajectory_pictures(row: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """What there is to draw of a stored trajectory: ("start", picture), ("turn 1", picture), ..."""
    turns = row.get("turns", [])
    named = [("start", row.get("start"))]
    named += [(f"turn {number}", turn.get("picture")) for number, turn in enumerate(turns, start=1)]
    found = [(name, picture) for name, picture in named if isinstance(picture, Mapping)]
    if len(found) <= MAX_STATES:
        return found
    places = [round(index * (len(found) - 1) / (MAX_STATES - 1)) for index in range(MAX_STATES)]
    return [found[place] for place in places]


def strip_png(pictures: Sequence[tuple[str, Mapping[str, Any]]], scale: float = 2.0) -> bytes:
    """All states side by side in one image, a new row after eight."""
    frames = _frames(pictures, scale)
    width, height = frames[0].size
    columns = min(len(frames), PER_ROW)
    rows = -(-len(frames) // PER_ROW)
    sheet = pillow().Image.new("RGB", (columns * width, rows * height), PAPER)
    for number, frame in enumerate(frames):
        row, column = divmod(number, PER_ROW)
        sheet.paste(frame, (column * width, row * height))
    return _encoded(sheet, format="PNG", optimize=True)


def animation(pictures: Sequence[tuple[str, Mapping[str, Any]]], kind: Animation = "gif", scale: float = 2.0) -> bytes:
    """One state after the other, for ever, resting on the last."""
    frames = _frames(pictures, scale)
    durations = [FRAME_MS] * (len(frames) - 1) + [LAST_MS]
    return _encoded(
        frames[0],
        format=kind.upper(),
        save_all=True,
        append_images=frames[1:],
        duration=durations if len(frames) > 1 else LAST_MS,
        loop=0,
    )


def _frames(pictures: Sequence[tuple[str, Mapping[str, Any]]], scale: float) -> "list[Image]":
    """Every state with its name above, all of one size."""
    if not pictures:
        raise ValueError("no picture to draw")
    images = [to_image(_headed(name, picture_drawing(picture)), scale) for name, picture in pictures]
    width, height = max(image.width for image in images), max(image.height for image in images)
    return [_padded(image, width, height) for image in images]


def _headed(name: str, drawing: Drawing) -> Drawing:
    heading = Label(
        x=0, y=-HEADING / 2 + 2, text=clipped(shown(name), 40), size=NOTE_SIZE, fill=NOTE_INK, anchor="start", bold=True
    )
    return Drawing(
        width=drawing.width,
        height=drawing.height,
        shapes=[heading, *drawing.shapes],
        title=drawing.title,
        margin=max(drawing.margin, HEADING),
    )


def _padded(image: "Image", width: int, height: int) -> "Image":
    if image.size == (width, height):
        return image
    sheet = pillow().Image.new("RGB", (width, height), PAPER)
    sheet.paste(image, (0, 0))
    return sheet


def _encoded(image: "Image", **how: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, **how)
    return buffer.getvalue()
