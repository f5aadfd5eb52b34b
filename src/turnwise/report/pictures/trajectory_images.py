"""A trajectory's states as files for papers and slides: a strip (PNG) and an animation (GIF or animated PNG).

Needs Pillow: pip install 'turnwise[pictures]'.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from turnwise.record.disk import write_atomic
from turnwise.report.formatting import clip, to_single_line
from turnwise.report.pictures.picture import NOTE_INK, NOTE_SIZE, draw_picture
from turnwise.report.pictures.raster import PAPER, describe_missing_fonts, drawing_to_image, import_pillow
from turnwise.report.pictures.shapes import Drawing, Label

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_STATES = 64
"""Of one file; of a longer trajectory the first and the last, evenly thinned between."""
HEADING = 22.0
FRAME_MS, LAST_MS = 700, 2200
PER_ROW = 8
AnimationFormat = Literal["gif", "png"]


def collect_pictures(row: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """What there is to draw of a stored trajectory: ("start", picture), ("turn 1", picture), ..."""
    turns = row.get("turns", [])
    named = [("start", row.get("start"))]
    named += [(f"turn {number}", turn.get("picture")) for number, turn in enumerate(turns, start=1)]
    found = [(name, picture) for name, picture in named if isinstance(picture, Mapping)]
    if len(found) <= MAX_STATES:
        return found
    places = [round(index * (len(found) - 1) / (MAX_STATES - 1)) for index in range(MAX_STATES)]
    return [found[place] for place in places]


def encode_strip(pictures: Sequence[tuple[str, Mapping[str, Any]]], scale: float = 2.0) -> bytes:
    """All states side by side in one image, a new row after eight."""
    frames = _frames(pictures, scale)
    width, height = frames[0].size
    columns = min(len(frames), PER_ROW)
    rows = -(-len(frames) // PER_ROW)
    sheet = import_pillow().Image.new("RGB", (columns * width, rows * height), PAPER)
    for number, frame in enumerate(frames):
        row, column = divmod(number, PER_ROW)
        sheet.paste(frame, (column * width, row * height))
    return _encoded(sheet, format="PNG", optimize=True)


def encode_animation(
    pictures: Sequence[tuple[str, Mapping[str, Any]]], kind: AnimationFormat = "gif", scale: float = 2.0
) -> bytes:
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
    images = [drawing_to_image(_headed(name, draw_picture(picture)), scale) for name, picture in pictures]
    width, height = max(image.width for image in images), max(image.height for image in images)
    return [_padded(image, width, height) for image in images]


def _headed(name: str, drawing: Drawing) -> Drawing:
    heading = Label(
        x=0,
        y=-HEADING / 2 + 2,
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
        margin=max(drawing.margin, HEADING),
    )


def _padded(image: "Image", width: int, height: int) -> "Image":
    if image.size == (width, height):
        return image
    sheet = import_pillow().Image.new("RGB", (width, height), PAPER)
    sheet.paste(image, (0, 0))
    return sheet


def _encoded(image: "Image", **how: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, **how)
    return buffer.getvalue()


class TrajectoryImages:
    """A strip and an animation of some trajectories of every n-th step.

    Made from a step's stored rows. Pictures are an addition: where one cannot be written, that is told once and
    training goes on without them.
    """

    def __init__(self, folder: Path, *, every: int, per_step: int, warn: Callable[[str], None]) -> None:
        """`folder`: where the step's trajectories are. `every`: 0 for none; then Pillow is not needed."""
        self._folder = folder
        self._every = every
        self._per_step = per_step
        self._warn = warn
        if every:
            import_pillow()
            if (lacks := describe_missing_fonts()) is not None:
                warn(lacks)

    def is_due(self, step: int) -> bool:
        return self._every > 0 and step % self._every == 0

    def write(self, step: int, rows: Sequence[Mapping[str, Any]]) -> list[Path]:
        """Of the first trajectory of each group in turn, then of the second, as many as were asked for."""
        written: list[Path] = []
        if not self.is_due(step):
            return written
        try:
            chosen = _chosen(rows, self._per_step)
            if not chosen:
                self._every = 0
                self._warn("pictures are off: this environment draws none")
            for row in chosen:
                written += save_trajectory_images(row, self._folder, _name(step, row))
        except (OSError, ValueError, MemoryError) as error:
            self._every = 0
            self._warn(f"pictures are off from here: {error}")
        return written


def save_trajectory_images(row: Mapping[str, Any], folder: Path, name: str) -> list[Path]:
    """NAME.png (all states side by side) and NAME.gif of a stored trajectory; nothing where it has no picture."""
    pictures = collect_pictures(row)
    if not pictures:
        return []
    strip, film = folder / f"{name}.png", folder / f"{name}.gif"
    write_atomic(strip, encode_strip(pictures), durable=False)
    write_atomic(film, encode_animation(pictures), durable=False)
    return [strip, film]


def _chosen(rows: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    drawable = [row for row in rows if collect_pictures(row)]
    return sorted(drawable, key=lambda row: (row["member"], row["group"]))[:count]


def _name(step: int, row: Mapping[str, Any]) -> str:
    return f"step_{step:06d}_group_{row['group']}_member_{row['member']}"
