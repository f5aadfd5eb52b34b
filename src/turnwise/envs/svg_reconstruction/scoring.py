"""Compare a drawing with the picture: by its pixels and by its shapes."""

from collections.abc import Sequence

import numpy

from turnwise.envs.svg_reconstruction.scene import CANVAS, Shape


def pixel_score(drawn: numpy.ndarray, target: numpy.ndarray) -> float:
    """Return max(0, 1 - |drawn - target|^2 / |white - target|^2): 1 for equal pictures, 0 for an empty one."""
    error = ((drawn.astype(float) - target) ** 2).sum()
    blank = ((255.0 - target) ** 2).sum()
    return float(max(0.0, 1.0 - error / blank))


def structure_score(shapes: Sequence[Shape], target: Sequence[Shape]) -> float:
    """Return 2 M / (n + m) for n shapes and m of the target, with M the most similarity that pairs of them can have."""
    best = {0: 0.0}  # most similarity by the set of paired target shapes, as bits
    for shape in shapes:
        similarities = [similarity(shape, target_shape) for target_shape in target]
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
    from PIL import ImageColor

    try:
        return ImageColor.getrgb(text)[:3]
    except ValueError:
        return None
