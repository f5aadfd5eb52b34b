"""The tool `search` of search_qa. Imported lazily, because it imports the search index and with it bm25s."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from turnwise.envs.search_qa.knowledge_base import shared_knowledge_base
from turnwise.tools.search.index import SearchIndex, index_in_memory
from turnwise.tools.search.tool import SearchTool, check_search_arguments, format_results, search_spec
from turnwise.tools.search.types import Passage
from turnwise.tools.tool import Tool, ToolResult, ToolRules


def make_shared_search(size: int, corpus: int, top: int) -> Tool:
    """Return a tool that searches one corpus for all episodes."""
    return SearchTool(_shared_index(size, corpus), top=top, model_sets_top=False)


@lru_cache(maxsize=4)
def _shared_index(size: int, corpus: int) -> SearchIndex:
    return index_in_memory(shared_knowledge_base(size, corpus).passages)


class EpisodeSearchTool:
    """Search the passages of the episode, which are its tool state. Results are not shared between episodes."""

    rules = ToolRules()

    def __init__(self, top: int) -> None:
        self._top = top
        self.spec = search_spec(model_sets_top=False, top=top)

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return check_search_arguments(arguments, top=self._top, model_sets_top=False)

    @asynccontextmanager
    async def open(self, seed: int, state: Sequence[Passage]) -> AsyncIterator["_EpisodeSearchSession"]:
        yield _EpisodeSearchSession(index_in_memory(state))


@dataclass(frozen=True, slots=True)
class _EpisodeSearchSession:
    index: SearchIndex

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Runs in the event loop: searching so small an index takes less time than starting a thread."""
        (hits,) = self.index.search([arguments["query"]], arguments["top"])
        return ToolResult(text=format_results(hits))
