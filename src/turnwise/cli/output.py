"""Printing: lines, tables and progress bars. Piped output is not wrapped."""

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

PIPE_WIDTH = 10_000
"""Characters per line without a terminal: each table row stays one line for grep."""


def print_line(text: str = "") -> None:
    sys.stdout.write(f"{text}\n")


def print_now(text: str) -> None:
    """Print and flush, for servers: a program that reads the output waits for the address."""
    print_line(text)
    sys.stdout.flush()


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print columns under bold headers. Only the last column wraps. Cells are plain text, not rich markup."""
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


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Yield `show(phase, done, total)`, which draws one bar per phase on a terminal and nothing elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    from turnwise.report.terminal import make_console

    console = make_console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_interactive) as progress:

        def show(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = progress.add_task(phase, total=total)
            progress.update(tasks[phase], completed=done)

        yield show
