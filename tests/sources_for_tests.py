"""Parse source files."""

import ast
import gc
from pathlib import Path


def parse_file(path: Path) -> ast.Module:
    """Parse without a garbage collection in between.

    It may log what a test left behind with a traceback, which parses source too, and Python 3.11 allows one at a time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        if was_enabled:
            gc.enable()
