"""Pictures beside a run's trajectories: trajectories/step_000012_group_3_member_0.png and .gif."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.record.disk import write_aside
from turnwise.report.pictures.fonts import missing
from turnwise.report.pictures.raster import animation, strip_png, trajectory_pictures
from turnwise.report.pictures.shapes_raster import pillow


class PictureFiles:
    """A strip and an animation of some trajectories of every n-th step.

    Made from a step's stored rows. Pictures are an addition: where one cannot be written, that is told once and
    training goes on without them.
    """

    def __init__(self, folder: Path, *, every: int, per_step: int, tell: Callable[[str], None]) -> None:
        """`folder`: where the step's trajectories are. `every`: 0 for none; then Pillow is not needed."""
        self._folder = folder
        self._every = every
        self._per_step = per_step
        self._tell = tell
        if every:
            pillow()
            if (lacks := missing()) is not None:
                tell(lacks)

    def wants(self, step: int) -> bool:
        return self._every > 0 and step % self._every == 0

    def write(self, step: int, rows: Sequence[Mapping[str, Any]]) -> list[Path]:
        """Of the first trajectory of each group in turn, then of the second, as many as were asked for."""
        written: list[Path] = []
        if not self.wants(step):
            return written
        try:
            chosen = _chosen(rows, self._per_step)
            if not chosen:
                self._every = 0
                self._tell("pictures are off: this environment draws none")
            for row in chosen:
                written += save_pictures(row, self._folder, _name(step, row))
        except (OSError, ValueError, MemoryError) as error:
            self._every = 0
            self._tell(f"pictures are off from here: {error}")
        return written


def save_pictures(row: Mapping[str, Any], folder: Path, name: str) -> list[Path]:
    """NAME.png (all states side by side) and NAME.gif of a stored trajectory; nothing where it has no picture."""
    pictures = trajectory_pictures(row)
    if not pictures:
        return []
    strip, film = folder / f"{name}.png", folder / f"{name}.gif"
    write_aside(strip, strip_png(pictures), durable=False)
    write_aside(film, animation(pictures), durable=False)
    return [strip, film]


def _chosen(rows: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    drawable = [row for row in rows if trajectory_pictures(row)]
    return sorted(drawable, key=lambda row: (row["member"], row["group"]))[:count]


def _name(step: int, row: Mapping[str, Any]) -> str:
    return f"step_{step:06d}_group_{row['group']}_member_{row['member']}"
