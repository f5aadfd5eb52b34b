"""turnwise merge"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from turnwise.cli.options import command_app
from turnwise.cli.show import line

app = command_app("merge", "ADAPTER --into FOLDER")


@app.default
def merge(adapter: str, /, *, into: Annotated[Path, Parameter(metavar="FOLDER")]) -> None:
    """Fold an adapter into its base model.

    Parameters
    ----------
    adapter
        A folder in peft's format, or a run that trained an adapter.
    into
        A new folder, for `from_pretrained` to load.
    """
    from turnwise.recipes.export import merge as merge_adapter

    merge_adapter(adapter, into)
    line(f"wrote {into}")
