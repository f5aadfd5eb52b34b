"""turnwise doctor"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from turnwise.cli.options import ASK, Settings, command_app, settings
from turnwise.cli.show import line, table
from turnwise.config.schema import RecordConfig
from turnwise.core.errors import UserError
from turnwise.recipes.doctor import examine

app = command_app("doctor", "[--plan --model NAME [--gpu-memory GIB] [--SECTION.KEY VALUE]...]")


@app.default
def doctor(
    *,
    plan: Annotated[bool, Parameter(group=ASK)] = False,
    model: Annotated[str | None, Parameter(metavar="NAME")] = None,
    shape: Annotated[str | None, Parameter(metavar="NAME")] = None,
    gpu_memory: Annotated[float | None, Parameter(metavar="GIB")] = None,
    overrides: Settings = (),
) -> None:
    """Check this machine.

    Parameters
    ----------
    plan
        Instead: what goes where when a model is trained on a GPU.
    model
        Of the plan: a Hugging Face name or a folder; its weights are not read.
    shape
        Of the plan, instead: one of the shapes that are known, such as qwen2.5-1.5b.
    gpu_memory
        Of the plan: the GPU's size in GiB; else that of the one here.
    """
    if plan:
        show_plan(model, shape, gpu_memory, settings(overrides))
        return
    if model is not None or shape is not None or gpu_memory is not None or overrides:
        raise UserError("a model, a GPU's size and settings are for a plan: add --plan")
    findings = examine(Path(RecordConfig().folder))
    table(("what", "found", "mend"), [(finding.name, finding.found, finding.mend) for finding in findings])
    broken = [finding.name for finding in findings if finding.mend and finding.needed]
    if broken:
        raise UserError(f"not ready, mend first: {', '.join(broken)}")


def show_plan(model: str | None, shape: str | None, gpu_memory: float | None, overrides: list[tuple[str, str]]) -> None:
    from turnwise.recipes.dry_run import HEADERS, report_plan

    report = report_plan(model, shape, gpu_memory, overrides)
    table(HEADERS, report.rows)
    line()
    for each in report.lines:
        line(each)
