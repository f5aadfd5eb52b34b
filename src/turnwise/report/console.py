"""The console that progress and tables are printed on."""

import io
import sys

from rich.console import Console
from rich.text import Text


def make_console() -> Console:
    """Standard output. Redrawing only on a real terminal: in a file or a pipe, colours may be forced, motion never.

    A character that the terminal's encoding lacks is replaced, so that no message can end a run.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return Console(force_interactive=None if sys.stdout.isatty() else False, highlight=False)


def one_line(text: str) -> Text:
    """Foreign text as one harmless line: no markup, no control characters, no escape sequences."""
    return Text("".join(letter if letter.isprintable() else " " for letter in text))
