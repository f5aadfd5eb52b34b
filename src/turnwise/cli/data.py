"""`turnwise data`."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from turnwise.cli.output import print_line, print_table
from turnwise.cli.parsing import command_app
from turnwise.core.errors import UserError

Episodes = Literal["training", "evaluation", "all"]

data_app = command_app("data", "inspect|export|evaluate RUN [OPTIONS]")


@data_app.default
def data(
    action: Literal["inspect", "export", "evaluate"],
    run: str,
    /,
    *,
    to: Annotated[Path | None, Parameter(metavar="FOLDER")] = None,
    on: Annotated[str | None, Parameter(metavar="RUN,FOLDER")] = None,
    format: Literal["dataset", "traces"] = "dataset",
    episodes: Episodes = "training",
) -> None:
    """Work with recorded episodes.

    Parameters
    ----------
    action
        `inspect`: print what a run or dataset holds. `export`: write a run's episodes as a dataset folder. `evaluate`:
        estimate the run's return from episodes that other policies played (off-policy evaluation).
    run
        Run, or for inspect also a dataset folder.
    to
        export: new folder, readable by `datasets.load_dataset` and `turnwise train --data`.
    format
        export: `dataset` (default), or `traces`: OpenEnv's training traces, which TRL trains on.
    on
        evaluate: runs or dataset folders with the episodes.
    episodes
        Episodes of a run that are read: of its training steps (default), of its evaluations, or all.
    """
    from turnwise.files.run_folders import find_run_folder
    from turnwise.run.find_source import check_free, find_data

    if action == "inspect":
        if not Path(run).exists():
            find_run_folder(run)
        _check_episodes(run, episodes)
        _print_summary(run, episodes)
    elif action == "export":
        if to is None:
            raise UserError("`turnwise data export` needs --to FOLDER.")
        check_free(to)
        find_run_folder(run)
        _check_episodes(run, episodes)
        from turnwise.run.data_tools import export_data, export_traces

        export = export_traces if format == "traces" else export_data
        print_line(f"wrote {export(run, to, episodes):,} episodes to {to}")
    else:
        if on is None:
            raise UserError("`turnwise data evaluate` needs --on RUN, the episodes to evaluate on.")
        find_run_folder(run)
        for source in on.split(","):
            find_data(source.strip())
        _print_estimate(run, on, episodes)


def _check_episodes(run: str, episodes: Episodes) -> None:
    """Read the first episode before torch is imported."""
    from turnwise.run.stored_sources import read_recorded

    if next(read_recorded(run, episodes), None) is None:
        raise UserError(f"{run} has no episodes. Give another source.")


def _print_summary(run: str, episodes: Episodes) -> None:
    from turnwise.report.formatting import format_decimal, format_percent
    from turnwise.run.data_tools import inspect_data

    facts = inspect_data(run, episodes)
    if not facts.episodes:
        raise UserError(f"{run} has no episodes. Give another source.")
    last = len(facts.rewards) - 1
    quantiles = [facts.rewards[round(share * last)] for share in (0, 0.25, 0.5, 0.75, 1)]
    rows = [
        ("episodes", f"{facts.episodes:,}"),
        ("success", format_percent(facts.succeeded / facts.episodes)),
        ("statuses", ", ".join(f"{name} {count:,}" for name, count in facts.statuses.items())),
        ("reward: 0, 25, 50, 75, 100 %", ", ".join(format_decimal(reward) for reward in quantiles)),
        ("tasks", f"{facts.tasks:,}, {facts.comparable:,} of them with different rewards"),
        ("turns per episode", f"{facts.turns / facts.episodes:.1f}"),
        ("sampled tokens", f"{facts.sampled_tokens:,}"),
        ("sampled", ", ".join(f"{name} {count:,}" for name, count in facts.samplers.items())),
        ("policy versions", "unknown" if facts.versions is None else f"{facts.versions[0]} to {facts.versions[1]}"),
    ]
    if facts.images:
        missing = f", {facts.missing_images:,} of them missing" if facts.missing_images else ""
        rows.append(("images", f"{facts.images:,}{missing}"))
    print_table(("", ""), rows)


def _print_estimate(run: str, on: str, episodes: Episodes) -> None:
    from turnwise.report.formatting import format_decimal
    from turnwise.run.data_tools import evaluate_offline

    estimate = evaluate_offline(run, [name.strip() for name in on.split(",")], episodes)
    if estimate.refusal is not None:
        raise UserError(
            f"No estimate of {run}: {estimate.refusal}. Play it (turnwise eval), or give episodes nearer to it."
        )
    rows = [
        ("expected return", format_decimal(estimate.value)),
        ("95 % interval", f"{format_decimal(estimate.low)} to {format_decimal(estimate.high)}"),
        ("return of the episodes", format_decimal(estimate.behaviour)),
        ("effective sample size", f"{estimate.effective_size:.1f} of {estimate.episodes:,} episodes"),
    ]
    print_table(("", ""), rows)
