"""CPU time of drawing the images that models see, and their sizes.

    python benchmarks/drawing.py [NAME ...] [--states 100] [--picture FILE.png]

Each environment is played at random; states that were drawn before are not counted. Times are CPU times of one thread,
which other load affects little.
"""

import argparse
import io
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import islice

from PIL import Image
from rich.console import Console
from rich.table import Table

from turnwise.core.messages import ImagePart
from turnwise.envs.picture_env import VisualEnv
from turnwise.envs.registry import ENVIRONMENTS, load_spec
from turnwise.envs.text_env import Outcome

COLUMNS = ("environment", "states", "ms (median)", "90 % below", "kB (median)", "largest, pixels")
GAP = 16
"""Pixels between the images of a picture."""


def images(cls: type[VisualEnv]) -> Iterator[ImagePart]:
    """Yield the images of random play without end."""
    seed = 0
    while True:
        env, rng, over = cls(), random.Random(seed), False
        env.reset(rng)
        for _ in range(env.max_turns):
            yield env.draw_image()
            if over or (action := env.random_action(rng)) is None:
                break
            outcome = env.step(action)
            assert isinstance(outcome, Outcome), f"{cls.__name__}.step is async"
            over = outcome.over
        seed += 1


def visual_class(name: str) -> type[VisualEnv] | None:
    cls = load_spec(name).text_env
    return cls if cls is not None and issubclass(cls, VisualEnv) else None


def measure(name: str, num_states: int) -> list[str]:
    cls = visual_class(name)
    assert cls is not None, f"{name} does not draw its state"
    milliseconds, drawn = list[float](), set[bytes]()
    for image in islice(images(cls), 100 * num_states):
        began = time.thread_time()
        data = image.data
        if data not in drawn:
            milliseconds.append(1000 * (time.thread_time() - began))
            drawn.add(data)
        if len(drawn) == num_states:
            break
    sizes = [Image.open(io.BytesIO(data)).size for data in drawn]
    width, height = max(sizes, key=lambda size: size[0] * size[1])
    return [
        name,
        str(len(drawn)),
        f"{statistics.median(milliseconds):.1f}",
        f"{statistics.quantiles(milliseconds, n=10)[-1]:.1f}",
        f"{statistics.median(map(len, drawn)) / 1000:.1f}",
        f"{width} x {height}",
    ]


def last_image(cls: type[VisualEnv], seed: int = 1) -> Image.Image:
    """Return what the model sees before the solver's last action."""
    env = cls()
    env.reset(random.Random(seed))
    while True:
        image, actions = env.draw_image(), env.solve()
        assert actions, f"{cls.__name__} has no solution"
        outcome = env.step(actions[0])
        assert isinstance(outcome, Outcome), f"{cls.__name__}.step is async"
        if outcome.over:
            return Image.open(io.BytesIO(image.data))


def draw_side_by_side(names: Sequence[str]) -> Image.Image:
    """Return one image per environment, in its own size."""
    drawn = [last_image(cls) for name in names if (cls := visual_class(name)) is not None]
    joined = Image.new(
        "RGB", (sum(each.width + GAP for each in drawn) - GAP, max(each.height for each in drawn)), "white"
    )
    x = 0
    for each in drawn:
        joined.paste(each, (x, 0))
        x += each.width + GAP
    return joined


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="*", metavar="NAME", help="default: all that draw their state")
    parser.add_argument("--states", type=int, default=100, help="different states to draw per environment")
    parser.add_argument("--picture", metavar="FILE.png", help="write a state of each environment instead")
    return parser.parse_args(words)


def run(args: argparse.Namespace, console: Console) -> None:
    names = args.environments or [name for name in ENVIRONMENTS if visual_class(name) is not None]
    if args.picture:
        draw_side_by_side(names).save(args.picture)
        return
    table = Table(*COLUMNS)
    for name in names:
        table.add_row(*measure(name, args.states))
    console.print(table)


if __name__ == "__main__":
    run(arguments(), Console(width=120))
