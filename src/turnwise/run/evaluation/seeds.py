"""Seeds of the tasks of an evaluation: lists such as 3,7,10-20, and files with them. Imports no torch."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from turnwise.core.errors import UserError, read_failure
from turnwise.core.task import Split
from turnwise.envs.seeds import FIRST_SEED, SEEDS_PER_SPLIT, seed_for, split_of_seed
from turnwise.run.setting_paths import is_file

MAX_SEEDS = 1_000_000
MAX_FILE = 20_000_000
"""Largest file of seeds, in bytes."""
SEPARATORS = re.compile(r"[,\s]+")
_RANGE = re.compile(r"(\d{1,15})(?:-(\d{1,15}))?", re.ASCII)


def read_seeds(text: str, split: Split) -> tuple[int, ...]:
    """Read the seeds from a list such as 3,7,10-20, or from a file with such a list.

    Numbers below 2^40 are indices of the split, as in `turnwise play --seed`. Larger ones are seeds as recorded in
    trajectories and must belong to the split.
    """
    seeds = tuple(_seed(number, split) for number in read_numbers(text))
    if not seeds:
        raise UserError(f"seeds {text}: contains no seeds. Give a list such as 3,7,10-20, or a file with one.")
    twice, times = Counter(seeds).most_common(1)[0]
    if times > 1:
        raise UserError(
            f"seeds names {twice - FIRST_SEED[split]} twice. Give each seed once; tries sets the episodes per task."
        )
    return seeds


def read_numbers(text: str) -> list[int]:
    """Read the numbers of a list or a file, without checking that they are seeds of a split."""
    path = Path(text)
    listed = _read(path) if is_file(path) else text
    return _numbers([word for line in listed.splitlines() for word in SEPARATORS.split(line.partition("#")[0]) if word])


def write_seeds(seeds: Sequence[int]) -> str:
    """Return the shortest list that `read_seeds` reads, with ranges such as 10-20."""
    ranges: list[list[int]] = []
    for seed in seeds:
        if ranges and seed == ranges[-1][1] + 1:
            ranges[-1][1] = seed
        else:
            ranges.append([seed, seed])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE:
            raise UserError(f"seeds {path}: the file is larger than {MAX_FILE} bytes. Give a list of seeds.")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"seeds: {read_failure(path, error)}. Give a text file of seeds.") from error


def _numbers(words: Iterable[str]) -> list[int]:
    numbers: list[int] = []
    for word in words:
        match = _RANGE.fullmatch(word)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            problem = "is not a seed" if word[:1].isdigit() else "is neither a seed nor a file that exists"
            raise UserError(f'seeds: "{word[:40]}" {problem}. Give whole numbers and ranges, such as 3,7,10-20.')
        if len(numbers) + last - first >= MAX_SEEDS:
            raise UserError(f"seeds: more than {MAX_SEEDS} seeds. Give fewer.")
        numbers += range(first, last + 1)
    return numbers


def _seed(number: int, split: Split) -> int:
    if number < SEEDS_PER_SPLIT:
        return seed_for(split, number)
    if (own := split_of_seed(number)) != split:
        raise UserError(f"seeds: {number} belongs to the {own} split, not to {split}. Choose split {own}.")
    return number
