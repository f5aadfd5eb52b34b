"""`report.html`: a run or an evaluation as one self-contained file, without scripts and without network access.

The pages are Jinja2 templates (`templates/`). Run data is untrusted text: every value that a template prints goes
through `show_invisible` and is escaped, except the SVG drawings of this package, which escape their own text.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from turnwise.core.errors import UserError
from turnwise.files.disk import wrap_disk_errors, write_atomic
from turnwise.files.run_folders import EVALUATION_FILE
from turnwise.pictures.text import show_invisible
from turnwise.report.evaluation_report import evaluation_context
from turnwise.report.run_report import run_context

REPORT_NAME = "report.html"


def _reveal(value: Any) -> Any:
    """Make control characters and direction overrides visible in everything that is not markup already."""
    return show_invisible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


TEMPLATES = Environment(
    loader=PackageLoader("turnwise.report"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_reveal,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render_report(folder: Path, summary: Mapping[str, Any] | None = None) -> str:
    """Return the report of a run or evaluation folder, which may still be growing.

    `summary` replaces a `summary.json` that is not written yet.
    """
    if (folder / EVALUATION_FILE).is_file():
        return TEMPLATES.get_template("evaluation.html").render(evaluation_context(folder))
    if (folder / "config.toml").is_file():
        return TEMPLATES.get_template("run.html").render(run_context(folder, summary))
    raise UserError(f"{folder} is neither a run nor an evaluation. Give the folder of one, e.g. runs/NAME.")


def write_report(folder: Path, out: Path | None = None, *, summary: Mapping[str, Any] | None = None) -> Path:
    """Write the report to `out` (default: `report.html` in the folder) and return its path."""
    target = folder / REPORT_NAME if out is None else out
    text = render_report(folder, summary)
    with wrap_disk_errors(target, "write the report again, or choose another file"):
        if target.is_dir():
            raise UserError(f"{target} is a folder. Name a file, e.g. {target / REPORT_NAME}.")
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, text.encode("utf-8", "backslashreplace"), durable=False)
    return target
