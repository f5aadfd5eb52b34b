"""The tool `search`: passages of a corpus for a query; those of all episodes that wait are asked for in one call."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from turnwise.config.keys import read_options
from turnwise.config.secrets import name_of_variable
from turnwise.core.errors import UserError
from turnwise.core.messages import ToolSpec
from turnwise.tools.search.batching import Batcher
from turnwise.tools.search.types import (
    MAX_QUERIES,
    MAX_QUERY_CHARS,
    MAX_RESULTS,
    Mode,
    Searcher,
    SearchResult,
    clean_text,
    one_line,
)
from turnwise.tools.tool import NeedsServer, Tool, ToolError, ToolResult, ToolRules

NAME, TOP = "search", 3
MAX_OUTPUT_CHARS = 4000
"""Of what the agent sees of one search."""
NOTHING = "Nothing found."

RULES = ToolRules(timeout_s=60.0, concurrency=4096, retries=3, pure=True)
"""As many at the same time as there are episodes: they share a call, so a limit would only make calls smaller."""


def search_spec(*, model_sets_top: bool, top: int, name: str = NAME) -> ToolSpec:
    """`model_sets_top`: whether the model says how many passages it wants."""
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


class SearchTool:
    """Has no state of an episode's own."""

    rules = RULES

    def __init__(self, searcher: Searcher, *, top: int = TOP, model_sets_top: bool = True, name: str = NAME) -> None:
        """`model_sets_top` False: the query is all that the model gives, so it may stand alone in a plain call."""
        self._searcher, self._top, self._chooses_top = searcher, top, model_sets_top
        self.spec = search_spec(model_sets_top=model_sets_top, top=top, name=name)
        self._batcher: Batcher[tuple[str, int], list[SearchResult]] = Batcher(self._search, most=MAX_QUERIES)

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return check_search_arguments(arguments, top=self._top, model_sets_top=self._chooses_top)

    @asynccontextmanager
    async def open(self, seed: int, state: Any) -> AsyncIterator["SearchTool"]:
        yield self

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        hits = await self._batcher.ask((arguments["query"], arguments["top"]))
        return ToolResult(text=format_results(hits))

    async def check_server(self) -> None:
        if isinstance(self._searcher, NeedsServer):
            await self._searcher.check_server()

    def _search(self, asked: Sequence[tuple[str, int]]) -> list[list[SearchResult]]:
        """As many hits as the one who wants most: fewer are the first of them."""
        found = self._searcher.search([query for query, _ in asked], max(top for _, top in asked))
        return [hits[:top] for hits, (_, top) in zip(found, asked, strict=True)]


def check_search_arguments(arguments: Mapping[str, Any], *, top: int, model_sets_top: bool) -> dict[str, Any]:
    """Query and top, as they are searched for; a ToolError for what is none."""
    unknown = sorted(arguments.keys() - ({"query", "top"} if model_sets_top else {"query"}))
    if unknown:
        raise ToolError(f"no argument {unknown[0][:60]}: there are query{' and top' if model_sets_top else ''}")
    query, wanted = arguments.get("query"), arguments.get("top", top)
    if not isinstance(query, str):
        raise ToolError("the argument query is missing" if query is None else "query must be a text")
    query = one_line(clean_text(query))
    if not query:
        raise ToolError("the query is empty: say what to look for")
    if len(query) > MAX_QUERY_CHARS:
        raise ToolError(f"the query is longer than {MAX_QUERY_CHARS} characters: shorten it")
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 1 <= wanted <= MAX_RESULTS:
        raise ToolError(f"top must be a whole number from 1 to {MAX_RESULTS}")
    return {"query": query, "top": wanted}


def format_results(hits: Sequence[SearchResult], limit: int = MAX_OUTPUT_CHARS) -> str:
    """One numbered line each, `title: passage`; all of them together about `limit` characters at most."""
    if not hits:
        return NOTHING
    each = max(limit // len(hits), 20)
    lines = (
        f"{number}. {one_line(hit.passage.title)}: {one_line(hit.passage.text)}"
        for number, hit in enumerate(hits, start=1)
    )
    return "\n".join(line if len(line) <= each else f"{line[: each - 4].rstrip()} ..." for line in lines)


class SearchOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")] = NAME
    """How the model calls it: two indexes are two tools by two names."""
    index: str | None = None
    """A folder that `turnwise index` wrote."""
    url: str | None = None
    """A server of `turnwise search INDEX --serve`, in place of a folder."""
    mode: Mode | None = None
    """How passages are ranked; left out: hybrid where the index has vectors, else lexical. A server has its own."""
    top: Annotated[int | None, Field(ge=1, le=MAX_RESULTS)] = None
    """Passages of every search; left out: the model may say how many, and gets three if it does not."""
    key_env: Annotated[str, AfterValidator(name_of_variable)] | None = None
    """The variable of the environment that holds the server's key; left out: TURNWISE_SEARCH_KEY, where it is set."""


def make_search_tool(options: Mapping[str, Any]) -> Tool:
    """Opens the index, or finds the server; what is wrong with the options is one line."""
    given = read_options(SearchOptions, options, "the tool search")
    top, chooses = given.top or TOP, given.top is None
    return SearchTool(_searcher(given), top=top, model_sets_top=chooses, name=given.name)


def _searcher(given: SearchOptions) -> Searcher:
    if given.index is not None and given.url is not None:
        raise UserError("the tool search takes an index or a url, not both: leave one of them out")
    if given.index is None and given.url is None:
        raise UserError('the tool search needs an index or a url: { use = "search", index = "FOLDER" }')
    if given.index is not None:
        if given.key_env is not None:
            raise UserError("the tool search: key_env is for a url; leave it out beside an index")
        from turnwise.tools.search.index import open_cached_index

        return open_cached_index(Path(given.index).expanduser(), given.mode)
    if given.mode is not None:
        raise UserError("the tool search: the server at a url has its own mode; leave mode out, or start it so")
    from turnwise.tools.search.remote import RemoteIndex, read_key

    url = given.url or ""
    return RemoteIndex(url, read_key(url, given.key_env))
