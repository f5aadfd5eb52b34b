"""Boards as numbers: a bit for each cell, so that a whole board is looked at in a few operations.

A column is `rows` bits from the bottom up and one more that stays 0, so that a line cannot run out of the top of one
column into the bottom of the next. The bits of a board with 6 rows:

    6 13 20 ..    spare
    5 12 19 ..    top row
    ..
    0  7 14 ..    bottom row
"""

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Board:
    """The geometry of one size."""

    rows: int
    columns: int

    @cached_property
    def columns_by_name(self) -> dict[str, int]:
        """The cells of each column. Columns are named from 1 at the left; to name one is a move."""
        column = (1 << self.rows) - 1
        return {str(place + 1): column << place * (self.rows + 1) for place in range(self.columns)}

    @cached_property
    def bottom(self) -> int:
        """The lowest cells."""
        return sum(1 << place * (self.rows + 1) for place in range(self.columns))

    @cached_property
    def full(self) -> int:
        return sum(self.columns_by_name.values())

    @cached_property
    def by_rows(self) -> tuple[tuple[tuple[int, str], ...], ...]:
        """Each cell with its column's name, as one reads a board: from the top row down, from left to right."""
        lowest = [(column & self.bottom, name) for name, column in self.columns_by_name.items()]
        return tuple(tuple((cell << height, name) for cell, name in lowest) for height in reversed(range(self.rows)))

    @cached_property
    def moves_from_middle(self) -> tuple[str, ...]:
        """The moves in the order in which a search should try them: most lines run through the middle."""
        return tuple(sorted(self.columns_by_name, key=lambda move: abs(2 * int(move) - 1 - self.columns)))

    @cached_property
    def columns_from_middle(self) -> tuple[int, ...]:
        return tuple(self.columns_by_name[move] for move in self.moves_from_middle)

    def landing(self, taken: int) -> int:
        """Where a piece can come to lie: 1 added at the bottom of a column is carried up to its first free cell."""
        return (taken + self.bottom) & self.full

    def has_four(self, stones: int) -> bool:
        """Whether four of these cells stand in a line: neighbours, then pairs of neighbours."""
        for step in (1, self.rows, self.rows + 1, self.rows + 2):
            pairs = stones & stones >> step
            if pairs & pairs >> 2 * step:
                return True
        return False

    def completing(self, stones: int) -> int:
        """The cells, taken or not, that make four in a line with three of these; in a column only the one on top."""
        cells = (stones << 1) & (stones << 2) & (stones << 3)
        for step in (self.rows, self.rows + 1, self.rows + 2):
            before = (stones << step) & (stones << 2 * step)  # two of them just before the cell
            after = (stones >> step) & (stones >> 2 * step)
            cells |= before & ((stones << 3 * step) | (stones >> step))
            cells |= after & ((stones >> 3 * step) | (stones << step))
        return cells & self.full
