"""GIF of the same tasks before and after training, side by side, from a recorded evaluation.

turnwise train frozen_lake --name lake
turnwise eval runs/lake/base runs/lake frozen_lake --episodes 256 --out runs/lake-before-after
python benchmarks/before_after.py runs/lake-before-after docs/pictures/frozen_lake.gif

It shows the first tasks of the evaluation, in their order, and the success rates over all of them.
"""

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.pictures.image import import_pillow
from turnwise.pictures.picture import draw_picture
from turnwise.pictures.raster import drawing_to_image
from turnwise.pictures.shapes import Drawing, Label, Rect, Shape
from turnwise.record.jsonl import read_jsonl
from turnwise.report.formatting import format_percent

SCENES, COLUMNS, ROWS = 3, 2, 2
"""Scenes one after the other, each with a grid of maps per side."""
SCALE = 2.0
"""Pixels per unit: sharp on screens of high density at half the size."""
MAP, GAP, LABEL, HEAD, FOOT, MIDDLE, EDGE = 108, 14, 22, 58, 34, 40, 18
"""Sizes in units; LABEL is the line below a map."""
STEP_MS, LAST_MS = 550, 1800
PAPER, INK, FAINT, WON, LOST = "#ffffff", "#20262d", "#5b6570", "#177245", "#b3402e"
OUTCOMES = {"succeeded": ("goal reached", WON), "failed": ("fell into a hole", LOST)}
OUT_OF_MOVES = ("out of moves", FAINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    pictures: Sequence[Mapping[str, Any]]
    """The start state and the state after each turn."""
    outcome: str
    colour: str

    def state(self, turn: int) -> tuple[Mapping[str, Any], bool]:
        """Return the picture after `turn` turns and whether the episode is over by then."""
        last = len(self.pictures) - 1
        return self.pictures[min(turn, last)], turn >= last


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    title: str
    success: float
    episodes: Sequence[Episode]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evaluation", type=Path, help="Folder of an evaluation of two models.")
    parser.add_argument("gif", type=Path, help="File to write.")
    arguments = parser.parse_args()
    sides, note = read_sides(arguments.evaluation)
    images, durations = zip(*draw_frames(sides, note), strict=True)
    write_gif(arguments.gif, images, durations)


def read_sides(folder: Path) -> tuple[list[Side], str]:
    """Return the two models with their first episodes, and the line that says what was evaluated."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    before, after = summary["models"]
    steps = re.search(r"step_0*(\d+)$", after["label"])
    titles = "Before training", f"After {steps[1]} steps" if steps else "After training"
    sides = [
        Side(title=title, success=model["success"], episodes=read_episodes(folder, model["label"]))
        for title, model in zip(titles, (before, after), strict=True)
    ]
    shown = len(sides[0].episodes)
    return sides, f"Success on {summary['tasks']} maps that training never saw. Shown: the first {shown}."


def read_episodes(folder: Path, label: str) -> list[Episode]:
    rows = [row for _, row in read_jsonl(folder / "trajectories" / f"{label.replace('/', '-')}.jsonl")]
    rows = sorted(rows, key=lambda row: row["group"])[: SCENES * COLUMNS * ROWS]
    return [read_episode(row) for row in rows]


def read_episode(row: Mapping[str, Any]) -> Episode:
    outcome, colour = OUTCOMES.get(row["status"], OUT_OF_MOVES)
    pictures = [row["start"], *(turn["picture"] for turn in row["turns"])]
    return Episode(pictures=pictures, outcome=outcome, colour=colour)


def draw_frames(sides: Sequence[Side], note: str) -> Iterator[tuple[Any, int]]:
    """Yield each image and its duration in milliseconds."""
    per_scene = COLUMNS * ROWS
    for start in range(0, len(sides[0].episodes), per_scene):
        shown = [side.episodes[start : start + per_scene] for side in sides]
        turns = max(len(episode.pictures) for episodes in shown for episode in episodes)
        for turn in range(turns):
            yield draw_frame(sides, shown, turn, note), LAST_MS if turn == turns - 1 else STEP_MS


def draw_frame(sides: Sequence[Side], shown: Sequence[Sequence[Episode]], turn: int, note: str) -> Any:
    side_width = COLUMNS * MAP + (COLUMNS - 1) * GAP
    width = 2 * EDGE + 2 * side_width + MIDDLE
    height = HEAD + ROWS * (MAP + LABEL) + FOOT
    shapes: list[Shape] = [Rect(x=0, y=0, width=width, height=height, fill=PAPER)]
    maps: list[tuple[Mapping[str, Any], int, int]] = []
    for number, (side, episodes) in enumerate(zip(sides, shown, strict=True)):
        left = EDGE + number * (side_width + MIDDLE)
        shapes.append(label(left, 30, side.title, INK, size=17, bold=True))
        shapes.append(label(left + side_width, 30, format_percent(side.success), (LOST, WON)[number], 17, True, "end"))
        for index, episode in enumerate(episodes):
            x, y = left + index % COLUMNS * (MAP + GAP), HEAD + index // COLUMNS * (MAP + LABEL)
            picture, over = episode.state(turn)
            maps.append((picture, x, y))
            if over:
                shapes.append(label(x + MAP / 2, y + MAP + 10, episode.outcome, episode.colour, 12, False, "middle"))
    shapes.append(label(width / 2, height - FOOT / 2 + 2, note, FAINT, size=12, anchor="middle"))
    image = drawing_to_image(Drawing(width=width, height=height, shapes=shapes, title=note), SCALE)
    for picture, x, y in maps:
        image.paste(draw_map(picture), (round(SCALE * x), round(SCALE * y)))
    return image


def label(
    x: float, y: float, text: str, fill: str, size: float = 12, bold: bool = False, anchor: Any = "start"
) -> Label:
    return Label(x=x, y=y, text=text, size=size, fill=fill, bold=bold, anchor=anchor)


def draw_map(picture: Mapping[str, Any]) -> Any:
    drawing = draw_picture(picture)
    image = drawing_to_image(drawing, SCALE * MAP / (drawing.width + 2 * drawing.margin))
    return image.resize((round(SCALE * MAP), round(SCALE * MAP)))


def write_gif(path: Path, images: Sequence[Any], durations: Sequence[int]) -> None:
    """Write one palette for all images, so that unchanged pixels are equal and cost nothing."""
    pil = import_pillow()
    width, height = images[0].size
    sample = pil.Image.new("RGB", (width, 3 * height))
    for index, image in enumerate((images[0], images[-1])):
        sample.paste(image, (0, index * height))
    for index, colour in enumerate((INK, FAINT, WON, LOST)):  # text has too few pixels to have its colour chosen
        sample.paste(colour, (index * width // 4, 2 * height, (index + 1) * width // 4, 3 * height))
    palette = sample.quantize(96, dither=pil.Image.Dither.NONE)
    first, *others = (image.quantize(palette=palette, dither=pil.Image.Dither.NONE) for image in images)
    path.parent.mkdir(parents=True, exist_ok=True)
    first.save(path, save_all=True, append_images=others, duration=list(durations), loop=0, optimize=True)


if __name__ == "__main__":
    main()
