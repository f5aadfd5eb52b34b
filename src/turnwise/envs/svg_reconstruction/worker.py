"""Render SVG with resvg and compare it with the picture, inside a worker process with limits of time and memory."""

import base64
import random
from collections.abc import Sequence

import numpy
import resvg_py
from PIL import ImageColor

from turnwise.core.image_encoding import Image, open_image
from turnwise.envs.adapters.worker import IllegalAction, WorkerEnv, WorkerStep
from turnwise.envs.svg_reconstruction.scene import CANVAS, Shape, format_svg, random_scene, read_svg


class SvgWorkerEnv(WorkerEnv):
    def __init__(
        self,
        min_shapes: int,
        max_shapes: int,
        image_side: int,
        structure_weight: float,
        success_at: float,
    ) -> None:
        self._counts, self._side = (min_shapes, max_shapes), image_side
        self._structure_weight, self._success_at = structure_weight, success_at
        self._best = 0.0

    def reset(self, seed: int) -> WorkerStep:
        low, high = self._counts
        self._scene = random_scene(random.Random(seed), min_shapes=low, max_shapes=high)
        self._target = render(self._scene, self._side)
        return {"text": "", "image": encode(self._target)}

    def step(self, action: str) -> WorkerStep:
        """Return the drawing of this SVG and its score; the reward is the improvement over the best one so far."""
        try:
            shapes = read_svg(action)
            drawn = render(shapes, self._side)
        except ValueError as error:
            raise IllegalAction(str(error)) from error
        structure, pixels = structure_score(shapes, self._scene), pixel_score(drawn, self._target)
        score = self._structure_weight * structure + (1 - self._structure_weight) * pixels
        reward, self._best = max(0.0, score - self._best), max(score, self._best)
        solved = score >= self._success_at
        text = f"This is your picture: structure {structure:.2f}, pixels {pixels:.2f}."
        return {"text": text, "image": encode(drawn), "reward": reward, "over": solved, "success": solved}

    def solve(self) -> list[str]:
        return [format_svg(self._scene)]


def render(shapes: list[Shape], side: int) -> numpy.ndarray:
    """Return pixels of (side, side, 3) from 0 to 255. Raises ValueError for SVG that resvg rejects."""
    png = resvg_py.svg_to_bytes(
        svg_string=format_svg(shapes), width=side, height=side, background="#ffffff", skip_system_fonts=True
    )
    return numpy.asarray(open_image(png).convert("RGB"))


def encode(pixels: numpy.ndarray) -> str:
    return base64.b64encode(Image(pixels).data).decode("ascii")


def pixel_score(drawn: numpy.ndarray, target: numpy.ndarray) -> float:
    """Return max(0, 1 - |drawn - target|^2 / |white - target|^2): 1 for equal pictures, 0 for an empty one."""
    error = ((drawn.astype(float) - target) ** 2).sum()
    blank = ((255.0 - target) ** 2).sum()
    return float(max(0.0, 1.0 - error / blank))


def structure_score(shapes: Sequence[Shape], target: Sequence[Shape]) -> float:
    """Return 2 M / (n + m) for n shapes and m of the target, with M the most similarity that pairs of them can have."""
    best = {0: 0.0}  # most similarity by the set of paired target shapes, as bits
    for shape in shapes:
        similarities = [similarity(shape, each) for each in target]
        after = dict(best)
        for taken, total in best.items():
            for index, value in enumerate(similarities):
                if value > 0 and not taken >> index & 1:
                    key = taken | 1 << index
                    after[key] = max(after.get(key, 0.0), total + value)
        best = after
    return 2 * max(best.values()) / (len(shapes) + len(target))


def similarity(one: Shape, other: Shape) -> float:
    """Return 0 for different kinds of shapes, else the mean of how near their boxes and their colours are."""
    boxes, colours = (one.box, other.box), (colour(one.fill), colour(other.fill))
    if one.kind != other.kind or boxes[0] is None or boxes[1] is None:
        return 0.0
    near = [max(0.0, 1 - abs(a - b) / (CANVAS / 4)) for a, b in zip(boxes[0], boxes[1], strict=True)]
    if colours[0] is None or colours[1] is None:
        return sum(near) / 8
    difference = sum(abs(a - b) for a, b in zip(colours[0], colours[1], strict=True)) / (3 * 255)
    return (sum(near) / 4 + 1 - difference) / 2


def colour(text: str) -> tuple[int, ...] | None:
    """Return red, green and blue of a CSS colour; None for none and unknown ones."""
    try:
        return ImageColor.getrgb(text)[:3]
    except ValueError:
        return None
