"""turnwise search"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from turnwise.cli.options import command_app
from turnwise.cli.show import line
from turnwise.core.errors import UserError
from turnwise.tools.search.types import KEY_VARIABLE, MAX_QUERY_CHARS, MAX_RESULTS, Mode

app = command_app("search", "INDEX QUERY | INDEX --serve [--port N]")


@app.default
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
        What to look for.
    top
        Number of passages. Default: 5.
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
        raise UserError("give a query, or --serve: turnwise search INDEX QUERY")
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
        line(f"{number}. {plain(result.passage.title)}  ({result.score:.4g}, {plain(result.passage.id)})")
        line(f"   {plain(result.passage.text)}")
    if not results:
        line("nothing found")


def serve_index(index: Path, mode: Mode | None, host: str, port: int) -> None:
    from turnwise.tools.search.index import open_index
    from turnwise.tools.search.server import SearchServer

    key = os.environ.get(KEY_VARIABLE, "").strip() or None
    with SearchServer(open_index(index, mode), host=host, port=port, key=key, log=print_now) as server:
        print_now(f"serving {index} at {server.url}{' with a key' if key else ''}  (Ctrl-C to stop)")
        with suppress(KeyboardInterrupt):  # the way to end it
            server.serve_forever()


def print_now(text: str) -> None:
    """Print and flush, since a program that reads the output waits for the address."""
    line(text)
    sys.stdout.flush()


def plain(text: str) -> str:
    """Untrusted text as one printable line."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
