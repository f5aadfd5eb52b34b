"""Check what sft.demos names, before torch is imported."""

from itertools import islice
from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.data.conversations import read_conversations
from turnwise.files.run_folders import find_run_folder
from turnwise.files.table_files import READERS, is_table_file

SOLVER = "solver"
"""Value of sft.demos: demonstrations of the environment's solver."""
FIRST_ROWS = 100
"""Rows of a file of conversations that are read to see whether it is one."""


def check_demos_source(demos: str, *, has_environment: bool) -> None:
    """Raise UserError if sft.demos is neither "solver", nor a run, nor a file whose first rows are conversations."""
    if is_table_file(demos):
        for _ in islice(read_conversations(Path(demos).expanduser()), FIRST_ROWS):
            pass
    elif not has_environment:
        raise UserError(
            f"Without an environment, conversations come from a file that ends in {', '.join(READERS)}, and {demos} is "
            "not one. Give another file, or name an environment."
        )
    elif demos != SOLVER:
        find_run_folder(demos)
