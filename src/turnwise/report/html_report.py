"""`report.html`: a run or an evaluation as one file that opens by double click, without network and without scripts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError
from turnwise.record.disk import wrap_disk_errors, write_atomic
from turnwise.record.evaluation_folder import PLAN
from turnwise.report.evaluation_report import evaluation_report
from turnwise.report.run_report import run_report

REPORT_NAME = "report.html"


def render_report(folder: Path, summary: Mapping[str, Any] | None = None) -> str:
    """The page of what is in the folder now; it may still be growing. `summary`: as `write_report` takes it."""
    if (folder / PLAN).is_file():
        return evaluation_report(folder)
    if (folder / "config.toml").is_file():
        return run_report(folder, summary)
    raise UserError(f"{folder} is neither a run nor an evaluation: give the folder of one, as runs/NAME")


def write_report(folder: Path, out: Path | None = None, *, summary: Mapping[str, Any] | None = None) -> Path:
    """Writes the report, into the folder itself unless told otherwise, and says where.

    `summary`: of a run that ends now, where it is not in the folder yet.
    """
    target = folder / REPORT_NAME if out is None else out
    text = render_report(folder, summary)
    with wrap_disk_errors(target, "report again, or choose another --out"):
        if target.is_dir():
            raise UserError(f"{target} is a folder: give --out a file, as {target / REPORT_NAME}")
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, text.encode("utf-8", "backslashreplace"), durable=False)
    return target
