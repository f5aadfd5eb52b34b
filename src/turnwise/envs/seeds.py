"""Training, validation and test: ranges of seeds that never meet, and a split for every state of a small world."""

from turnwise.core.errors import UserError
from turnwise.core.random_streams import address
from turnwise.core.task import Split

SEEDS_PER_SPLIT = 2**40
"""How many seeds a split has."""

FIRST_SEED: dict[Split, int] = {"train": 0, "validation": SEEDS_PER_SPLIT, "test": 2 * SEEDS_PER_SPLIT}
"""Where the range of each split begins."""


def seed_for(split: Split, index: int) -> int:
    """The seed of a split's task number `index`."""
    if split not in FIRST_SEED:
        raise UserError(f"no split {split!r}: choose one of {', '.join(FIRST_SEED)}")
    if not 0 <= index < SEEDS_PER_SPLIT:
        raise UserError(f"task index {index} is out of range: choose 0 to {SEEDS_PER_SPLIT - 1}")
    return FIRST_SEED[split] + index


def split_of_seed(seed: int) -> Split:
    """The split whose range holds this seed."""
    for split, first in FIRST_SEED.items():
        if first <= seed < first + SEEDS_PER_SPLIT:
            return split
    raise UserError(f"seed {seed} belongs to no split: choose 0 to {len(FIRST_SEED) * SEEDS_PER_SPLIT - 1}")


BY_QUARTER: tuple[Split, ...] = ("train", "train", "validation", "test")


def split_of_state(state: str | None) -> Split:
    """Half of all states are for training, a quarter each for validation and test, whatever they look like."""
    return BY_QUARTER[address("split", str(state)) % len(BY_QUARTER)]
