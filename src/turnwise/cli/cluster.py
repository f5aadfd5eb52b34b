"""`turnwise cluster plan`."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from turnwise.cli.output import print_line, print_table
from turnwise.cli.parsing import Settings, command_app, merge_settings

cluster_app = command_app("cluster", "plan RECIPE --gpus N [OPTIONS] [--SECTION.KEY VALUE]...")


@cluster_app.default
def cluster(
    action: Literal["plan"],
    recipe: str,
    /,
    *,
    gpus: Annotated[int, Parameter(metavar="N")],
    gpu: Annotated[str, Parameter(metavar="NAME")] = "H100",
    rates: Annotated[Path | None, Parameter(metavar="FILE.toml")] = None,
    overrides: Settings = (),
) -> None:
    """Plan a cluster.

    Parameters
    ----------
    action
        `plan`: print what goes where, memory per GPU, predicted step time, and the command to run it.
    recipe
        Recipe, environment, FILE.toml with your own settings, or FILE.py:Class.
    gpus
        Number of GPUs.
    gpu
        GPU model, such as A100, H100 (default) or H200; an unknown one lists all.
    rates
        Measured rates, in place of estimates.
    """
    from turnwise.run.cluster_report import report_cluster
    from turnwise.run.configure import configure

    settings = merge_settings(overrides)
    config = configure(recipe, overrides=settings)
    report = report_cluster(recipe, config, settings, gpus=gpus, gpu_name=gpu, rates_file=rates)
    print_line(f"{report.title}\n")
    for table in (report.roles, report.memory, report.choices):
        print_table(table.headers, table.rows)
        print_line()
    for line in report.notes:
        print_line(line)
    print_line(f"\n{report.command}")
