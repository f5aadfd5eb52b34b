"""Retrieval: time and size of an index, and searches per second of many concurrent episodes.

    python benchmarks/retrieval.py [FILES...] [--seconds 5] [--dense MODEL] [--remote]

FILES: a corpus, such as Debian's python3.11-doc (apt-get download python3.11-doc; dpkg-deb -x); by default a corpus of
about that size is generated. Every episode searches again as soon as it has its result, through the toolbox and the
search tool as in training. No query is repeated, so the cache is never hit. --remote: through a server on this machine.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from turnwise.core.messages import ToolCall
from turnwise.tools.search.index import SearchIndex, open_index
from turnwise.tools.search.indexing import build_index
from turnwise.tools.search.lexical import tokenize
from turnwise.tools.search.remote import RemoteIndex
from turnwise.tools.search.server import SearchServer
from turnwise.tools.search.storage import DenseSettings
from turnwise.tools.search.tool import SearchTool
from turnwise.tools.search.types import Mode, Searcher, SearchResult
from turnwise.tools.toolbox import ToolBox

EPISODES = (1, 64, 512)
GENERATED_PAGES, GENERATED_WORDS = 530, 3600
"""About the size of python3.11-doc."""


class CountingSearcher:
    """Forwards searches and records the size of each batch."""

    def __init__(self, searcher: Searcher) -> None:
        self._searcher, self.sizes = searcher, list[int]()

    def search(self, queries: Sequence[str], top: int) -> list[list[SearchResult]]:
        self.sizes.append(len(queries))
        return self._searcher.search(queries, top)


def generate(folder: Path) -> Path:
    """Generate pages of random words with Zipf-like frequencies."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghiklmnoprstu", k=rng.randint(2, 9))) for _ in range(20_000)]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    file = folder / "corpus.jsonl"
    with file.open("w") as out:
        for page in range(GENERATED_PAGES):
            text = rng.choices(words, weights, k=GENERATED_WORDS)
            lines = [" ".join(text[at : at + 60]) + "." for at in range(0, len(text), 60)]
            out.write(json.dumps({"title": f"page {page}", "text": "\n\n".join(lines)}) + "\n")
    return file


def make_queries(index: SearchIndex) -> Iterator[str]:
    """Yield distinct queries: three to six words of a passage and a number."""
    rng, number = random.Random(0), 0
    while True:
        words = tokenize(index.passages[rng.randrange(len(index.passages))].text) or ["word"]
        yield f"{' '.join(rng.choices(words, k=rng.randint(3, 6)))} q{number}"
        number += 1


async def drive(searcher: CountingSearcher, queries: Iterator[str], episodes: int, seconds: float) -> list[float]:
    """Return the seconds of each search."""
    box, durations, until = ToolBox([SearchTool(searcher)]), list[float](), time.perf_counter() + seconds

    async def episode(number: int) -> None:
        async with box.open(number) as tools:
            while (began := time.perf_counter()) < until:
                call = ToolCall(name="search", arguments=json.dumps({"query": next(queries)}))
                result = await tools.call(call)
                if result.failed:
                    raise RuntimeError(result.text)
                durations.append(time.perf_counter() - began)

    await asyncio.gather(*map(episode, range(episodes)))
    return durations


@contextmanager
def maybe_remote(index: SearchIndex, remote: bool) -> Iterator[Searcher]:
    if not remote:
        yield index
        return
    with SearchServer(index) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield RemoteIndex(server.url)
        server.shutdown()


def measure(console: Console, folder: Path, mode: Mode, seconds: float, remote: bool) -> None:
    index = open_index(folder, mode)
    queries = make_queries(index)
    columns = ("episodes", "searches/s", "median ms", "p99 ms", "CPU ms per search", "searches per batch")
    table = Table(*columns, title=mode, title_justify="left")
    with maybe_remote(index, remote) as searcher:
        for episodes in EPISODES:
            counter = CountingSearcher(searcher)
            began, used = time.perf_counter(), time.process_time()
            durations = asyncio.run(drive(counter, queries, episodes, seconds))
            rate, cpu = len(durations) / (time.perf_counter() - began), (time.process_time() - used) / len(durations)
            slow = statistics.quantiles(durations, n=100)[98]
            cells = (
                f"{rate:,.0f}",
                f"{statistics.median(durations) * 1e3:.2f}",
                f"{slow * 1e3:.2f}",
                f"{cpu * 1e3:.2f}",
            )
            table.add_row(str(episodes), *cells, f"{statistics.mean(counter.sizes):.1f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--dense", metavar="MODEL")
    parser.add_argument("--remote", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    with tempfile.TemporaryDirectory() as work:
        files, folder = args.files or [generate(Path(work))], Path(work) / "index"
        began, used = time.perf_counter(), time.process_time()
        index = build_index(files, folder, dense=DenseSettings(model=args.dense) if args.dense else None)
        size = sum(index.sizes.values()) / 1e6
        console.print(
            f"index: {index.files:,} files, {index.passages:,} passages, {size:.1f} MB, "
            f"built in {time.perf_counter() - began:.1f} s ({time.process_time() - used:.1f} s of CPU)"
        )
        modes: tuple[Mode, ...] = ("lexical", "dense", "hybrid") if args.dense else ("lexical",)
        for mode in modes:
            measure(console, folder, mode, args.seconds, args.remote)


if __name__ == "__main__":
    main()
