"""The tool `search`: passages of a corpus for a query; those of all episodes that wait are asked for in one call."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from turnwise.core.messages import ToolSpec
from turnwise.tools.readiness import NeedsServer
from turnwise.tools.search.batching import Batcher
from turnwise.tools.search.hits import Hit, Searcher
from turnwise.tools.search.limits import LONGEST_QUERY, MOST_HITS, MOST_QUERIES
from turnwise.tools.search.passages import clean, one_line
from turnwise.tools.tool import ToolError, ToolResult, ToolRules

NAME, TOP = "search", 3
MOST_CHARACTERS = 4000
"""Of what the agent sees of one search."""
NOTHING = "Nothing found."

RULES = ToolRules(timeout_s=60.0, concurrency=4096, retries=3, pure=True)
"""As many at the same time as there are episodes: they share a call, so a limit would only make calls smaller."""


def search_spec(*, chooses_top: bool, top: int, name: str = NAME) -> ToolSpec:
    """`chooses_top`: whether the model says how many passages it wants."""
    properties: dict[str, Any] = {"query": {"type": "string", "description": "What to look for."}}
    if chooses_top:
        properties["top"] = {
            "type": "integer",
            "description": "How many passages.",
            "default": top,
            "minimum": 1,
            "maximum": MOST_HITS,
        }
    return ToolSpec(
        name=name,
        description="Finds passages by their words.",
        parameters={"type": "object", "properties": properties, "required": ["query"]},
    )


class SearchTool:
    """Has no state of an episode's own."""

    rules = RULES

    def __init__(self, searcher: Searcher, *, top: int = TOP, chooses_top: bool = True, name: str = NAME) -> None:
        """`chooses_top` False: the query is all that the model gives, so it may stand alone in a plain call."""
        self._searcher, self._top, self._chooses_top = searcher, top, chooses_top
        self.spec = search_spec(chooses_top=chooses_top, top=top, name=name)
        self._batcher: Batcher[tuple[str, int], list[Hit]] = Batcher(self._search, most=MOST_QUERIES)

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return checked_search(arguments, top=self._top, chooses_top=self._chooses_top)

    @asynccontextmanager
    async def open(self, seed: int, state: Any) -> AsyncIterator["SearchTool"]:
        yield self

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        hits = await self._batcher.ask((arguments["query"], arguments["top"]))
        return ToolResult(text=shown(hits))

    async def check_server(self) -> None:
        if isinstance(self._searcher, NeedsServer):
            await self._searcher.check_server()

    def _search(self, asked: Sequence[tuple[str, int]]) -> list[list[Hit]]:
        """As many hits as the one who wants most: fewer are the first of them."""
        found = self._searcher.search([query for query, _ in asked], max(top for _, top in asked))
        return [hits[:top] for hits, (_, top) in zip(found, asked, strict=True)]


def checked_search(arguments: Mapping[str, Any], *, top: int, chooses_top: bool) -> dict[str, Any]:
    """Query and top, as they are searched for; a ToolError for what is none."""
    unknown = sorted(arguments.keys() - ({"query", "top"} if chooses_top else {"query"}))
    if unknown:
        raise ToolError(f"no argument {unknown[0][:60]}: there are query{' and top' if chooses_top else ''}")
    query, wanted = arguments.get("query"), arguments.get("top", top)
    if not isinstance(query, str):
        raise ToolError("the argument query is missing" if query is None else "query must be a text")
    query = one_line(clean(query))
    if not query:
        raise ToolError("the query is empty: say what to look for")
    if len(query) > LONGEST_QUERY:
        raise ToolError(f"the query is longer than {LONGEST_QUERY} characters: shorten it")
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 1 <= wanted <= MOST_HITS:
        raise ToolError(f"top must be a whole number from 1 to {MOST_HITS}")
    return {"query": query, "top": wanted}


def shown(hits: Sequence[Hit], limit: int = MOST_CHARACTERS) -> str:
    """One numbered line each, `title: passage`; all of them together about `limit` characters at most."""
    if not hits:
        return NOTHING
    each = max(limit // len(hits), 20)
    lines = (
        f"{number}. {one_line(hit.passage.title)}: {one_line(hit.passage.text)}"
        for number, hit in enumerate(hits, start=1)
    )
    return "\n".join(line if len(line) <= each else f"{line[: each - 4].rstrip()} ..." for line in lines)
