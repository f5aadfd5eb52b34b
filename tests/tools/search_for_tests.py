"""A small corpus on disk, its index, and episodes that call the search tool."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnwise.core.messages import ToolCall
from turnwise.tools.search.indexing import build_index
from turnwise.tools.search.types import Passage, SearchResult
from turnwise.tools.tool import Tool, ToolResult
from turnwise.tools.toolbox import ToolBox

ROWS = [
    {"title": "Otter", "text": "The otter swims in the river and eats fish.", "id": "a1"},
    {"title": "Owl", "text": "The owl hunts mice at night."},
    {"title": "Bridge", "text": "A bridge crosses the river at its narrowest place."},
    {"title": "Bread", "text": "Bread is baked of flour, water and salt."},
]


def write_rows(file: Path, rows: Sequence[dict[str, Any]] = ROWS) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def make_index(folder: Path, rows: Sequence[dict[str, Any]] = ROWS, **options: Any) -> Path:
    """Folder of the index."""
    folder.mkdir(exist_ok=True)
    build_index([write_rows(folder / "rows.jsonl", rows)], folder / "index", **options)
    return folder / "index"


def titles(hits: Sequence[SearchResult]) -> list[str]:
    return [hit.passage.title for hit in hits]


def call_all(tool: Tool, calls: Sequence[dict[str, Any]]) -> list[ToolResult]:
    """Run each search in its own episode, concurrently, through a ToolBox."""

    async def one(box: ToolBox, number: int, arguments: dict[str, Any]) -> ToolResult:
        async with box.open(number) as tools:
            return await tools.call(ToolCall(name="search", arguments=json.dumps(arguments)))

    async def together() -> list[ToolResult]:
        box = ToolBox([tool])
        return await asyncio.gather(*(one(box, number, arguments) for number, arguments in enumerate(calls)))

    return asyncio.run(together())


class Scripted:
    """Searcher that returns the query as a title and records the queries of each call."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def search(self, queries: Sequence[str], top: int) -> list[list[SearchResult]]:
        self.asked.append(list(queries))
        return [
            [SearchResult(passage=Passage(title=query, text=f"{place}"), score=0.0) for place in range(top)]
            for query in queries
        ]
