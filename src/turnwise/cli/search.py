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
        A folder that turnwise index wrote.
    query
        What to look for.
    top
        How many passages; left out, 5.
    mode
        lexical, dense or hybrid; left out: hybrid where the index has vectors.
    serve
        Answer searches of runs, whose tool names this address as its url, until Ctrl-C.
    port
        Where it listens; left out, 8080. 0: any that is free.
    host
        Left out, 127.0.0.1: this machine alone. Any other address needs a key in TURNWISE_SEARCH_KEY.
    """
    if serve == (query is not None):
        raise UserError("give a query, or --serve: turnwise search INDEX QUERY")
    if not 1 <= top <= MAX_RESULTS:
        raise UserError(f"--top {top}: must be from 1 to {MAX_RESULTS}")
    if query is None:
        serve_index(index, mode, host, port)
    else:
        show_hits(index, mode, query, top)


def show_hits(index: Path, mode: Mode | None, query: str, top: int) -> None:
    from turnwise.tools.search.index import open_index

    (hits,) = open_index(index, mode).search([query[:MAX_QUERY_CHARS]], top)
    for number, hit in enumerate(hits, start=1):
        line(f"{number}. {plain(hit.passage.title)}  ({hit.score:.4g}, {plain(hit.passage.id)})")
        line(f"   {plain(hit.passage.text)}")
    if not hits:
        line("nothing found")


def serve_index(index: Path, mode: Mode | None, host: str, port: int) -> None:
    from turnwise.tools.search.index import open_index
    from turnwise.tools.search.server import SearchServer

    key = os.environ.get(KEY_VARIABLE, "").strip() or None
    with SearchServer(open_index(index, mode), host=host, port=port, key=key, say=say) as server:
        say(f"serving {index} at {server.url}{' with a key' if key else ''}  (Ctrl-C ends)")
        with suppress(KeyboardInterrupt):  # the way to end it
            server.serve_forever()


def say(text: str) -> None:
    """At once: who pipes the output waits for the address."""
    line(text)
    sys.stdout.flush()


def plain(text: str) -> str:
    """Foreign text as one harmless line."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
