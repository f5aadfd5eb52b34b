"""What commands print: plain lines and aligned columns, whole when piped, wrapped to the width of a terminal."""

import io
import sys
from collections.abc import Iterable, Sequence

PIPE_WIDTH = 10_000
"""Where there is no terminal nothing is wrapped, so that each row stays one line for grep."""


def line(text: str = "") -> None:
    sys.stdout.write(f"{text}\n")


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns under bold headers; the last one wraps. Cells are plain text: brackets in them mean nothing."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for position, header in enumerate(headers):
        grid.add_column(header, no_wrap=position < len(headers) - 1, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    screen = Console()
    width = screen.width if screen.is_terminal else PIPE_WIDTH
    buffer = io.StringIO()
    Console(file=buffer, width=width, force_terminal=screen.is_terminal).print(grid)
    sys.stdout.write("\n".join(row.rstrip() for row in buffer.getvalue().splitlines()) + "\n")
