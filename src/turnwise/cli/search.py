"""`turnwise index` and `turnwise search`."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from turnwise.cli.output import print_line, print_now, progress_bars
from turnwise.cli.parsing import command_app
from turnwise.core.errors import UserError
from turnwise.network.ports import check_port
from turnwise.text.command_line import spell_command
from turnwise.tools.search.types import KEY_VARIABLE, MAX_QUERY_CHARS, MAX_RESULTS, PASSAGE_CHARS, Mode

MIN_CHARS, MAX_CHARS = 100, 20_000

index_app = command_app("index", "FILES... --to FOLDER [--dense MODEL]")
search_app = command_app("search", "INDEX QUERY | INDEX --serve [--port N]")


@index_app.default
def index(
    *files: Annotated[Path, Parameter(name="FILES")],
    to: Annotated[Path, Parameter(metavar="FOLDER")],
    dense: Annotated[str | None, Parameter(metavar="MODEL")] = None,
    dtype: Literal["float16", "float32"] = "float16",
    query_prefix: Annotated[str, Parameter(metavar="TEXT")] = "",
    passage_prefix: Annotated[str, Parameter(metavar="TEXT")] = "",
    characters: Annotated[int, Parameter(metavar="N")] = PASSAGE_CHARS,
) -> None:
    """Build an index for the search tool.

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
    from turnwise.tools.search.documents import SkippedFiles
    from turnwise.tools.search.indexing import build_index
    from turnwise.tools.search.storage import DenseSettings

    if not files:
        raise UserError("No files given. Run `turnwise index FILES --to FOLDER`.")
    if not MIN_CHARS <= characters <= MAX_CHARS:
        raise UserError(f"--characters {characters}: must be from {MIN_CHARS} to {MAX_CHARS}")
    if dense is None and (query_prefix or passage_prefix):
        raise UserError("Prefixes need an encoder: give --dense MODEL, or remove them.")
    settings = dense and DenseSettings(
        model=encoder_name(dense), dtype=dtype, query_prefix=query_prefix, passage_prefix=passage_prefix
    )
    skipped = SkippedFiles()
    start = time.perf_counter()
    with progress_bars() as show_progress:
        manifest = build_index(
            files, to, dense=settings or None, passage_characters=characters, progress=show_progress, skipped=skipped
        )
    size = sum(manifest.sizes.values())
    print_line(
        f"wrote {to}: {manifest.passages:,} passages from {manifest.files:,} files, {size / 1e6:,.1f} MB, "
        f"in {time.perf_counter() - start:,.1f} s"
    )
    if summary := skipped.summary():
        print_line(summary)
    print_line(f"next: {spell_command('search', to, 'QUERY')}")


def encoder_name(model: str) -> str:
    """Return the absolute path of a folder, because the index may be used from another working directory."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model


@search_app.default
def search(
    index: Annotated[Path, Parameter(name="INDEX")],
    query: Annotated[str | None, Parameter(name="QUERY")] = None,
    /,
    *,
    top: Annotated[int, Parameter(metavar="N")] = 5,
    mode: Mode | None = None,
    serve: bool = False,
    port: Annotated[int, Parameter(metavar="N")] = 8080,
    host: Annotated[str, Parameter(metavar="ADDRESS")] = "127.0.0.1",
) -> None:
    """Search an index, or serve it.

    Parameters
    ----------
    index
        Folder written by turnwise index.
    query
        Search query.
    top
        Number of passages to print. Default: 5.
    mode
        Retrieval mode: lexical, dense or hybrid. Default: hybrid if the index has vectors, else lexical.
    serve
        Serve the index over HTTP until Ctrl-C. Runs use it with the tool's option url.
    port
        Port to serve on; 0 for any free port. Default: 8080.
    host
        Address to serve on. Default: 127.0.0.1, this machine only. Others need a key in TURNWISE_SEARCH_KEY.
    """
    if serve == (query is not None):
        raise UserError("Give a query, `turnwise search INDEX QUERY`, or --serve.")
    check_port(port)
    if not 1 <= top <= MAX_RESULTS:
        raise UserError(f"--top {top}: must be from 1 to {MAX_RESULTS}")
    if query is None:
        serve_index(index, mode, host, port)
    else:
        print_results(index, mode, query, top)


def print_results(index: Path, mode: Mode | None, query: str, top: int) -> None:
    from turnwise.tools.search.index import open_index

    (results,) = open_index(index, mode).search([query[:MAX_QUERY_CHARS]], top)
    for number, result in enumerate(results, start=1):
        print_line(
            f"{number}. {to_printable(result.passage.title)}  ({result.score:.4g}, {to_printable(result.passage.id)})"
        )
        print_line(f"   {to_printable(result.passage.text)}")
    if not results:
        print_line("nothing found")


def serve_index(index: Path, mode: Mode | None, host: str, port: int) -> None:
    from turnwise.tools.search.index import open_index
    from turnwise.tools.search.server import SearchServer

    key = os.environ.get(KEY_VARIABLE, "").strip() or None
    with SearchServer(open_index(index, mode), host=host, port=port, key=key, log=print_now) as server:
        print_now(f"serving {index} at {server.url}{' with a key' if key else ''}  (Ctrl-C to stop)")
        with suppress(KeyboardInterrupt):  # Ctrl-C is the normal way to stop
            server.serve_forever()


def to_printable(text: str) -> str:
    """Return untrusted text as one printable line."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
