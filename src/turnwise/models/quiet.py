"""transformers draws bars and prints reports while it loads and saves; what matters of them is checked by us."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def quiet_transformers(*, progress_bars: bool = False) -> Iterator[None]:
    """`progress_bars`: leave them as they are, for downloads."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not progress_bars:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
