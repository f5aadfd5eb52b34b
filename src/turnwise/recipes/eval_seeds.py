"""Lists of seeds as people write them: `3,7,10-20`, or a file of such lines."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.core.task import Split
from turnwise.envs.seeds import FIRST, RANGE, seed_for, split_of

MAX_SEEDS = 1_000_000
MAX_FILE = 20_000_000
_PART = re.compile(r"(\d{1,15})(?:-(\d{1,15}))?", re.ASCII)


def read_seeds(text: str, split: Split) -> tuple[int, ...]:
    """The seeds of a list or of a file that holds one, in the order given.

    Small numbers count the tasks of the split from 0, as `turnwise play --seed` does; those from 2^40 on are seeds as
    trajectories record them, and must be of that split.
    """
    path = Path(text)
    listed = _read(path) if _is_file(path) else text
    words = [word for line in listed.splitlines() for word in re.split(r"[,\s]+", line.partition("#")[0]) if word]
    seeds = tuple(_seed(number, split) for number in _numbers(words))
    if not seeds:
        raise UserError(f"--seeds {text}: holds no seeds: give such as 3,7,10-20, or a file of them")
    if len(set(seeds)) < len(seeds):
        twice = next(seed for seed in seeds if seeds.count(seed) > 1)
        raise UserError(f"--seeds names {twice - FIRST[split]} twice: give each once, and --tries for more episodes")
    return seeds


def write_seeds(seeds: Sequence[int]) -> str:
    """The shortest list that `read_seeds` reads back: 10-20 for a run of numbers."""
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][1] + 1:
            runs[-1][1] = seed
        else:
            runs.append([seed, seed])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a list that is too long for a file's name
        return False


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE:
            raise UserError(f"--seeds {path}: is larger than {MAX_FILE} bytes: give a list of seeds")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--seeds {path}: cannot be read: give a text file of seeds") from error


def _numbers(words: Iterable[str]) -> list[int]:
    numbers: list[int] = []
    for word in words:
        found = _PART.fullmatch(word)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last:
            raise UserError(f'--seeds: "{word[:40]}" is no seed: give whole numbers and ranges, such as 3,7,10-20')
        if len(numbers) + last - first >= MAX_SEEDS:
            raise UserError(f"--seeds: more than {MAX_SEEDS}: give fewer")
        numbers += range(first, last + 1)
    return numbers


def _seed(number: int, split: Split) -> int:
    if number < RANGE:
        return seed_for(split, number)
    if (found := split_of(number)) != split:
        raise UserError(f"--seeds: {number} is of the {found} split, not {split}: give --split {found}")
    return number
