"""Check what sft.demos names, before torch is imported."""

from itertools import islice
from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.data.conversations import read_conversations
from turnwise.files.run_folders import find_run_folder
from turnwise.files.table_files import READERS, is_table_file
from turnwise.record.labels import Label, count_labels, labelled_run

SOLVER = "solver"
"""Value of sft.demos: demonstrations of the environment's solver."""
FIRST_ROWS = 100
"""Rows of a file of conversations that are read to see whether it is one."""


def find_labelled_run(demos: str) -> Path | None:
    """Return the run whose labels sft.demos names; None if it names something else."""
    return labelled_run(Path(demos).expanduser())


def check_demos_source(demos: str, *, has_environment: bool) -> None:
    """Raise UserError unless sft.demos is "solver", a run, a run's labels, or a file that starts with conversations."""
    if (run := find_labelled_run(demos)) is not None:
        if not count_labels(run)[Label.GOOD]:
            raise UserError(f"{demos} labels no episode as good. Label some in `turnwise view --play`.")
    elif is_table_file(demos):
        for _ in islice(read_conversations(Path(demos).expanduser()), FIRST_ROWS):
            pass
    elif not has_environment:
        raise UserError(
            f"Without an environment, conversations come from a file that ends in {', '.join(READERS)}, and {demos} is "
            "not one. Give another file, or name an environment."
        )
    elif demos != SOLVER:
        find_run_folder(demos)
