"""Seeds by split: disjoint ranges for training, validation and test, and a split for each start state."""

from turnwise.core.errors import UserError
from turnwise.core.random_streams import address
from turnwise.core.task import Split

SEEDS_PER_SPLIT = 2**40
"""Number of seeds per split."""

FIRST_SEED: dict[Split, int] = {"train": 0, "validation": SEEDS_PER_SPLIT, "test": 2 * SEEDS_PER_SPLIT}
"""First seed of each split."""


def seed_for(split: Split, index: int) -> int:
    """Return the seed of task `index` of a split."""
    if split not in FIRST_SEED:
        raise UserError(f"Unknown split {split!r}: choose one of {', '.join(FIRST_SEED)}")
    if not 0 <= index < SEEDS_PER_SPLIT:
        raise UserError(f"Task index {index} is out of range: choose 0 to {SEEDS_PER_SPLIT - 1}")
    return FIRST_SEED[split] + index


def split_of_seed(seed: int) -> Split:
    """Return the split whose range contains this seed."""
    for split, first in FIRST_SEED.items():
        if first <= seed < first + SEEDS_PER_SPLIT:
            return split
    raise UserError(f"Seed {seed} belongs to no split: choose 0 to {len(FIRST_SEED) * SEEDS_PER_SPLIT - 1}")


SPLIT_OF_QUARTER: tuple[Split, ...] = ("train", "train", "validation", "test")


def split_of_state(state: str | None) -> Split:
    """Return the split of a start state by its hash: half train, a quarter each validation and test."""
    return SPLIT_OF_QUARTER[address("split", str(state)) % len(SPLIT_OF_QUARTER)]
