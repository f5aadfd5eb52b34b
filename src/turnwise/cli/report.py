"""turnwise report"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from turnwise.cli.options import command_app
from turnwise.cli.show import line

app = command_app("report", "RUN [--out FILE]")


@app.default
def report(run: str, /, *, out: Annotated[Path | None, Parameter(metavar="FILE")] = None) -> None:
    """Write a run or an evaluation as one HTML file.

    Parameters
    ----------
    run
        A run or an evaluation: its folder, or its name in runs/.
    out
        Where to write; left out, report.html in the folder.
    """
    from turnwise.record.run_folder import find_folder
    from turnwise.report.html_report import write_report

    line(f"wrote {write_report(find_folder(run), out)}")
