"""turnwise export"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from turnwise.cli.options import command_app
from turnwise.cli.show import line

app = command_app("export", "RUN --to FOLDER")


@app.default
def export(run: str, /, *, to: Annotated[Path, Parameter(metavar="FOLDER")]) -> None:
    """Write a run's model.

    Parameters
    ----------
    run
        A run: its folder, or its name in runs/; or its RUN/checkpoints/NAME.
    to
        A new folder, for `from_pretrained` to load.
    """
    from turnwise.recipes.export import export as export_run

    export_run(run, to)
    line(f"wrote {to}")
