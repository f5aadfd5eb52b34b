"""turnwise index"""

import time
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from turnwise.cli.options import command_app
from turnwise.cli.show import line
from turnwise.core.errors import UserError
from turnwise.tools.search.types import PASSAGE_CHARS

SHORTEST, LONGEST = 100, 20_000

app = command_app("index", "FILES... --to FOLDER [--dense MODEL]")


@app.default
def index(
    *files: Annotated[Path, Parameter(name="FILES")],
    to: Annotated[Path, Parameter(metavar="FOLDER")],
    dense: Annotated[str | None, Parameter(metavar="MODEL")] = None,
    dtype: Literal["float16", "float32"] = "float16",
    query_prefix: Annotated[str, Parameter(metavar="TEXT")] = "",
    passage_prefix: Annotated[str, Parameter(metavar="TEXT")] = "",
    characters: Annotated[int, Parameter(metavar="N")] = PASSAGE_CHARS,
) -> None:
    """Build an index for the tool search.

    Parameters
    ----------
    files
        .txt, .md, .html and .jsonl (text, and if you like title and id) files; folders with such files.
    to
        A new folder.
    dense
        Also encode every passage: the folder or owner/name of a Hugging Face encoder.
    dtype
        Of its vectors: float16, or float32, which takes twice the space.
    query_prefix
        What the encoder wants before a query, if anything, as "query: ".
    passage_prefix
        What it wants before a passage.
    characters
        The longest passage; left out, 800.
    """
    from turnwise.cli.counting_bar import CountingBar
    from turnwise.tools.search.documents import SUFFIXES, SkippedFiles
    from turnwise.tools.search.indexing import build_index
    from turnwise.tools.search.storage import DenseSettings

    if not files:
        raise UserError("say what to index: turnwise index FILES --to FOLDER")
    if not SHORTEST <= characters <= LONGEST:
        raise UserError(f"--characters {characters}: must be from {SHORTEST} to {LONGEST}")
    if dense is None and (query_prefix or passage_prefix):
        raise UserError("a prefix is for an encoder: give --dense MODEL, or leave it out")
    settings = dense and DenseSettings(
        model=encoder_name(dense), dtype=dtype, query_prefix=query_prefix, passage_prefix=passage_prefix
    )
    skipped = SkippedFiles()
    began = time.perf_counter()
    with CountingBar() as bar:
        made = build_index(
            files, to, dense=settings or None, passage_characters=characters, show=bar.show, skipped=skipped
        )
    size = sum(made.sizes.values())
    line(
        f"wrote {to}: {made.passages:,} passages of {made.files:,} files, {size / 1e6:,.1f} MB, "
        f"in {time.perf_counter() - began:,.1f} s"
    )
    if told := skipped.told(SUFFIXES):
        line(told)
    line(f"next: turnwise search {to} QUERY")


def encoder_name(given: str) -> str:
    """A folder in full: an index is used from elsewhere too."""
    return str(Path(given).resolve()) if Path(given).is_dir() else given
