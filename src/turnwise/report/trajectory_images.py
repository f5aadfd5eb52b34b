"""Images of a trajectory beside its file: all states in one strip (PNG) and an animation (GIF or animated PNG).

They are named trajectories/step_000012_group_3_member_0.png and .gif. They need Pillow: pip install
'turnwise[pictures]'.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from turnwise.files.disk import write_atomic
from turnwise.pictures.fonts import describe_missing_fonts
from turnwise.pictures.image import import_pillow
from turnwise.pictures.picture import NOTE_INK, NOTE_SIZE, draw_picture, is_only_html
from turnwise.pictures.raster import PAPER, drawing_to_image
from turnwise.pictures.shapes import Drawing, Label
from turnwise.pictures.text import clip, to_single_line

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_STATES = 64
"""Maximum number of states in an image. Longer trajectories are sampled evenly, with the first and last state."""
HEADING_HEIGHT = 22.0
FRAME_MS, LAST_MS = 700, 2200
STATES_PER_ROW = 8
AnimationFormat = Literal["gif", "png"]


def collect_pictures(row: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the pictures of a stored trajectory as ("start", picture), ("turn 1", picture), ..."""
    turns = row.get("turns", [])
    named = [("start", row.get("start"))]
    named += [(f"turn {number}", turn.get("picture")) for number, turn in enumerate(turns, start=1)]
    pictures = [
        (name, picture) for name, picture in named if isinstance(picture, Mapping) and not is_only_html(picture)
    ]
    if len(pictures) <= MAX_STATES:
        return pictures
    indices = [round(index * (len(pictures) - 1) / (MAX_STATES - 1)) for index in range(MAX_STATES)]
    return [pictures[index] for index in indices]


def encode_strip(pictures: Sequence[tuple[str, Mapping[str, Any]]]) -> bytes:
    """Return all states side by side as one PNG image, eight per row."""
    frames = _frames(pictures)
    width, height = frames[0].size
    columns = min(len(frames), STATES_PER_ROW)
    rows = -(-len(frames) // STATES_PER_ROW)
    sheet = import_pillow().Image.new("RGB", (columns * width, rows * height), PAPER)
    for number, frame in enumerate(frames):
        row, column = divmod(number, STATES_PER_ROW)
        sheet.paste(frame, (column * width, row * height))
    return _encode(sheet, format="PNG", optimize=True)


def encode_animation(pictures: Sequence[tuple[str, Mapping[str, Any]]], file_format: AnimationFormat = "gif") -> bytes:
    """Return an endless animation of the states that pauses on the last one."""
    frames = _frames(pictures)
    durations = [FRAME_MS] * (len(frames) - 1) + [LAST_MS]
    return _encode(
        frames[0],
        format=file_format.upper(),
        save_all=True,
        append_images=frames[1:],
        duration=durations if len(frames) > 1 else LAST_MS,
        loop=0,
    )


def _frames(pictures: Sequence[tuple[str, Mapping[str, Any]]]) -> "list[Image]":
    """Draw every state with its name above, padded to one size."""
    if not pictures:
        raise ValueError("no picture to draw")
    images = [drawing_to_image(_add_heading(name, draw_picture(picture))) for name, picture in pictures]
    width, height = max(image.width for image in images), max(image.height for image in images)
    return [_pad(image, width, height) for image in images]


def _add_heading(name: str, drawing: Drawing) -> Drawing:
    heading = Label(
        x=0,
        y=-HEADING_HEIGHT / 2 + 2,
        text=clip(to_single_line(name), 40),
        size=NOTE_SIZE,
        fill=NOTE_INK,
        anchor="start",
        bold=True,
    )
    return Drawing(
        width=drawing.width,
        height=drawing.height,
        shapes=[heading, *drawing.shapes],
        title=drawing.title,
        margin=max(drawing.margin, HEADING_HEIGHT),
    )


def _pad(image: "Image", width: int, height: int) -> "Image":
    if image.size == (width, height):
        return image
    sheet = import_pillow().Image.new("RGB", (width, height), PAPER)
    sheet.paste(image, (0, 0))
    return sheet


def _encode(image: "Image", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, **options)
    return buffer.getvalue()


class TrajectoryImages:
    """Writes images of a trajectory of every n-th step.

    If an image cannot be written, it warns once and writes no more; training continues.
    """

    def __init__(self, folder: Path, *, every: int, warn: Callable[[str], None]) -> None:
        """`folder`: trajectories of the run. `every`: steps between images; 0 writes none and needs no Pillow."""
        self._folder = folder
        self._every = every
        self._warn = warn
        if every:
            import_pillow()
            if (missing := describe_missing_fonts()) is not None:
                warn(missing)

    def is_due(self, step: int) -> bool:
        return self._every > 0 and step % self._every == 0

    def write(self, step: int, rows: Sequence[Mapping[str, Any]]) -> list[Path]:
        """Write the images of the first trajectory that has pictures."""
        written: list[Path] = []
        if not self.is_due(step):
            return written
        try:
            drawable = [row for row in rows if collect_pictures(row)]
            if not drawable:
                self._every = 0
                self._warn("no pictures are written: this environment draws none")
                return written
            row = min(drawable, key=lambda row: (row["member"], row["group"]))
            written += save_trajectory_images(row, self._folder, _name(step, row))
        except (OSError, ValueError, MemoryError) as error:
            self._every = 0
            self._warn(f"no more pictures are written: {error}")
        return written


def save_trajectory_images(row: Mapping[str, Any], folder: Path, name: str) -> list[Path]:
    """Write NAME.png and NAME.gif of a stored trajectory; nothing if it has no pictures."""
    pictures = collect_pictures(row)
    if not pictures:
        return []
    strip, animation = folder / f"{name}.png", folder / f"{name}.gif"
    write_atomic(strip, encode_strip(pictures), durable=False)
    write_atomic(animation, encode_animation(pictures), durable=False)
    return [strip, animation]


def _name(step: int, row: Mapping[str, Any]) -> str:
    return f"step_{step:06d}_group_{row['group']}_member_{row['member']}"
