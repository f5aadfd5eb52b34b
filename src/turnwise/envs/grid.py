"""What environments on a grid share: directions, symbols, text."""

from collections.abc import Mapping, Sequence

Cell = tuple[int, int]
"""Row and column, from 0 at the top left."""

DIRECTIONS: dict[str, Cell] = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}


def neighbor(cell: Cell, direction: str) -> Cell:
    row, column = DIRECTIONS[direction]
    return cell[0] + row, cell[1] + column


def grid_text(rows: Sequence[Sequence[str]], symbols: Mapping[str, str]) -> str:
    """Named cells as symbols, a space between cells so that each is a token of its own."""
    return "\n".join(" ".join(symbols[name] for name in row) for row in rows)


def cell_text(cell: Cell) -> str:
    """As people count: row 1 is at the top, col 1 at the left."""
    return f"row {cell[0] + 1} col {cell[1] + 1}"


def legend(symbols: Mapping[str, str]) -> str:
    """The symbols in use, made of the same table as the grid: the two cannot disagree."""
    return ", ".join(f"{symbol} {name.replace('_', ' ')}" for name, symbol in symbols.items()) + "."
