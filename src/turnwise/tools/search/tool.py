"""The tool `search`: passages for a query. Queries of all waiting episodes go into one call."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from turnwise.core.errors import UserError
from turnwise.core.messages import ToolSpec
from turnwise.network.secrets import check_variable_name
from turnwise.settings.options import read_options
from turnwise.text.truncation import one_line, shorten
from turnwise.tools.search.batching import Batcher
from turnwise.tools.search.types import (
    MAX_QUERIES,
    MAX_QUERY_CHARS,
    MAX_RESULTS,
    Mode,
    Searcher,
    SearchResult,
    clean_text,
)
from turnwise.tools.tool import NeedsServer, Tool, ToolError, ToolResult, ToolRules

NAME, DEFAULT_TOP = "search", 3
MAX_OUTPUT_CHARS = 4000
"""Characters shown per search."""
NOTHING_FOUND = "Nothing found."

RULES = ToolRules(timeout_s=60.0, concurrency=4096, retries=3, pure=True)
"""High concurrency, since concurrent searches share a call: a limit would only make the calls smaller."""


class SearchOptions(BaseModel):
    """Settings of the tool in a recipe: { use = "search", index = "FOLDER" }, or url instead of index."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")] = NAME
    """Name by which the model calls the tool. Two indexes are two tools with different names."""
    index: str | None = None
    """Folder written by `turnwise index`."""
    url: str | None = None
    """URL of a server started by `turnwise search INDEX --serve`, instead of a folder."""
    mode: Mode | None = None
    """Retrieval mode. Default: hybrid if the index has vectors, else lexical. A server has its own mode."""
    top: Annotated[int | None, Field(ge=1, le=MAX_RESULTS)] = None
    """Passages per search. Default: the model may choose, and gets three if it does not."""
    key_env: Annotated[str, AfterValidator(check_variable_name)] | None = None
    """Environment variable with the server's key. Default: TURNWISE_SEARCH_KEY, if it is set."""


def make_search_tool(options: Mapping[str, Any]) -> Tool:
    """Create the tool and open its index. Raises UserError if the options are wrong."""
    checked = read_options(SearchOptions, options, "the tool search")
    top = checked.top or DEFAULT_TOP
    return SearchTool(_open_searcher(checked), top=top, model_sets_top=checked.top is None, name=checked.name)


def _open_searcher(options: SearchOptions) -> Searcher:
    if options.index is not None and options.url is not None:
        raise UserError("The tool search takes an index or a url, not both: remove one of them.")
    if options.index is not None:
        if options.key_env is not None:
            raise UserError("The tool search: key_env is only for a url: remove it.")
        from turnwise.tools.search.index import open_cached_index

        return open_cached_index(Path(options.index).expanduser(), options.mode)
    if options.url is None:
        raise UserError('The tool search needs an index or a url: { use = "search", index = "FOLDER" }.')
    if options.mode is not None:
        raise UserError("The tool search: the server at url sets the mode: remove mode, or start the server with it.")
    from turnwise.tools.search.remote import RemoteIndex, read_key

    return RemoteIndex(options.url, read_key(options.url, options.key_env))


class SearchTool:
    """Search without state of its own."""

    rules = RULES

    def __init__(
        self, searcher: Searcher, *, top: int = DEFAULT_TOP, model_sets_top: bool = True, name: str = NAME
    ) -> None:
        """`model_sets_top` False: the query is the only argument, so a plain call may consist of it alone."""
        self._searcher, self._top, self._model_sets_top = searcher, top, model_sets_top
        self.spec = search_spec(model_sets_top=model_sets_top, top=top, name=name)
        self._batcher: Batcher[tuple[str, int], list[SearchResult]] = Batcher(self._search, max_batch=MAX_QUERIES)

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return check_search_arguments(arguments, top=self._top, model_sets_top=self._model_sets_top)

    @asynccontextmanager
    async def open(self, seed: int, state: Any) -> AsyncIterator["SearchTool"]:
        yield self

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        results = await self._batcher.submit((arguments["query"], arguments["top"]))
        return ToolResult(text=format_results(results))

    async def check_server(self) -> None:
        if isinstance(self._searcher, NeedsServer):
            await self._searcher.check_server()

    def _search(self, requests: Sequence[tuple[str, int]]) -> list[list[SearchResult]]:
        """Search with the largest `top` of the batch and cut the results of the others."""
        rankings = self._searcher.search([query for query, _ in requests], max(top for _, top in requests))
        return [results[:top] for results, (_, top) in zip(rankings, requests, strict=True)]


def search_spec(*, model_sets_top: bool, top: int, name: str = NAME) -> ToolSpec:
    """`model_sets_top`: the model may choose the number of passages."""
    properties: dict[str, Any] = {"query": {"type": "string", "description": "What to look for."}}
    if model_sets_top:
        properties["top"] = {
            "type": "integer",
            "description": "How many passages.",
            "default": top,
            "minimum": 1,
            "maximum": MAX_RESULTS,
        }
    return ToolSpec(
        name=name,
        description="Finds passages by their words.",
        parameters={"type": "object", "properties": properties, "required": ["query"]},
    )


def check_search_arguments(arguments: Mapping[str, Any], *, top: int, model_sets_top: bool) -> dict[str, Any]:
    """Validate and complete the arguments. Raises ToolError."""
    unknown = sorted(arguments.keys() - ({"query", "top"} if model_sets_top else {"query"}))
    if unknown:
        raise ToolError(f"no argument {unknown[0][:60]}: there are query{' and top' if model_sets_top else ''}")
    query, top = arguments.get("query"), arguments.get("top", top)
    if not isinstance(query, str):
        raise ToolError("the argument query is missing" if query is None else "query must be a text")
    query = one_line(clean_text(query))
    if not query:
        raise ToolError("the query is empty: say what to look for")
    if len(query) > MAX_QUERY_CHARS:
        raise ToolError(f"the query is longer than {MAX_QUERY_CHARS} characters: shorten it")
    if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= MAX_RESULTS:
        raise ToolError(f"top must be a whole number from 1 to {MAX_RESULTS}")
    return {"query": query, "top": top}


def format_results(results: Sequence[SearchResult]) -> str:
    """One numbered line per result, `title: passage`; about MAX_OUTPUT_CHARS characters in all."""
    if not results:
        return NOTHING_FOUND
    line_limit = max(MAX_OUTPUT_CHARS // len(results), 20)
    lines = (
        f"{number}. {one_line(result.passage.title)}: {one_line(result.passage.text)}"
        for number, result in enumerate(results, start=1)
    )
    return "\n".join(shorten(line, line_limit) for line in lines)
