"""turnwise index"""

import time
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from turnwise.cli.options import command_app
from turnwise.cli.show import line
from turnwise.core.errors import UserError
from turnwise.core.program import spell_command
from turnwise.tools.search.types import PASSAGE_CHARS

MIN_CHARS, MAX_CHARS = 100, 20_000

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
        Files (.txt, .md, .html, .jsonl) or folders of such files. JSONL rows have text and optionally title and id.
    to
        New folder for the index.
    dense
        Encoder for dense retrieval: folder or owner/name of a Hugging Face model. Default: lexical retrieval only.
    dtype
        Type of the vectors: float16, or float32 for twice the size.
    query_prefix
        Prefix that the encoder expects before a query, such as "query: ".
    passage_prefix
        Prefix that the encoder expects before a passage.
    characters
        Maximum characters of a passage. Default: 800.
    """
    from turnwise.cli.counting_bar import CountingBar
    from turnwise.tools.search.documents import SkippedFiles
    from turnwise.tools.search.indexing import build_index
    from turnwise.tools.search.storage import DenseSettings

    if not files:
        raise UserError("no files given: turnwise index FILES --to FOLDER")
    if not MIN_CHARS <= characters <= MAX_CHARS:
        raise UserError(f"--characters {characters}: must be from {MIN_CHARS} to {MAX_CHARS}")
    if dense is None and (query_prefix or passage_prefix):
        raise UserError("prefixes need an encoder: give --dense MODEL, or leave them out")
    settings = dense and DenseSettings(
        model=encoder_name(dense), dtype=dtype, query_prefix=query_prefix, passage_prefix=passage_prefix
    )
    skipped = SkippedFiles()
    start = time.perf_counter()
    with CountingBar() as bar:
        manifest = build_index(
            files, to, dense=settings or None, passage_characters=characters, progress=bar.show, skipped=skipped
        )
    size = sum(manifest.sizes.values())
    line(
        f"wrote {to}: {manifest.passages:,} passages from {manifest.files:,} files, {size / 1e6:,.1f} MB, "
        f"in {time.perf_counter() - start:,.1f} s"
    )
    if summary := skipped.summary():
        line(summary)
    line(f"next: {spell_command('search', to, 'QUERY')}")


def encoder_name(model: str) -> str:
    """Absolute path of a folder, since the index may be used from another working directory."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model
