"""Shared by grid environments: directions, symbols, text."""

from collections.abc import Collection, Mapping, Sequence

Cell = tuple[int, int]
"""Row and column, starting at 0 in the top left."""

DIRECTIONS: dict[str, Cell] = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}


def neighbor(cell: Cell, direction: str) -> Cell:
    row, column = DIRECTIONS[direction]
    return cell[0] + row, cell[1] + column


def grid_text(rows: Sequence[Sequence[str]], symbols: Mapping[str, str]) -> str:
    """Format named cells as symbols, separated by spaces so that each is a token."""
    return "\n".join(" ".join(symbols[name] for name in row) for row in rows)


def cell_text(cell: Cell) -> str:
    """Format a cell for the prompt, counting from row 1 and col 1."""
    return f"row {cell[0] + 1} col {cell[1] + 1}"


def describe_cells(rows: Sequence[Sequence[str]], plain: Collection[str]) -> str:
    """Return where the cells are that are not plain: `player at row 1 col 2`, one per line."""
    return "\n".join(
        f"{name.replace('_', ' ')} at {cell_text((row, column))}"
        for row, names in enumerate(rows)
        for column, name in enumerate(names)
        if name not in plain
    )


def legend(symbols: Mapping[str, str]) -> str:
    """Describe the symbols, from the same table that the grid is drawn with."""
    return ", ".join(f"{symbol} {name.replace('_', ' ')}" for name, symbol in symbols.items()) + "."
