"""`turnwise models`, `turnwise export` and `turnwise merge`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from turnwise.cli.output import print_line, print_table
from turnwise.cli.parsing import command_app
from turnwise.models.loading.catalogue import CATALOGUE, OTHER_SOURCES
from turnwise.text.command_line import spell_command

models_app = command_app("models", "")
export_app = command_app("export", "RUN --to FOLDER")
merge_app = command_app("merge", "ADAPTER --into FOLDER")


@models_app.default
def models() -> None:
    """List the models with a short name."""
    rows = [
        (entry.name, entry.parameters, entry.source, "yes" if entry.cached else "no", entry.note) for entry in CATALOGUE
    ]
    print_table(("model", "parameters", "source", "downloaded", "description"), rows)
    print_line(f"\n{OTHER_SOURCES}; {spell_command('train', 'RECIPE', '--model.name', 'NAME')}")


@export_app.default
def export(run: str, /, *, to: Annotated[Path, Parameter(metavar="FOLDER")]) -> None:
    """Save a run's model.

    Parameters
    ----------
    run
        Run (its folder, or its name in runs/) or RUN/checkpoints/NAME.
    to
        New folder, readable by `from_pretrained`.
    """
    from turnwise.run.find_source import check_free, find_source

    find_source(run)  # before torch is imported
    check_free(to)
    from turnwise.run.export import export as export_run

    export_run(run, to)
    print_line(f"wrote {to}")


@merge_app.default
def merge(adapter: str, /, *, into: Annotated[Path, Parameter(metavar="FOLDER")]) -> None:
    """Merge a LoRA adapter into its base model.

    Parameters
    ----------
    adapter
        Folder in PEFT format, or a run that trained an adapter.
    into
        New folder, readable by `from_pretrained`.
    """
    from turnwise.run.find_source import check_free, find_source

    if not Path(adapter).expanduser().is_dir():
        find_source(adapter)  # before torch is imported
    check_free(into)
    from turnwise.run.export import merge as merge_adapter

    merge_adapter(adapter, into)
    print_line(f"wrote {into}")
