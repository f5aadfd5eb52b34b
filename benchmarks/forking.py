"""Forks of a session compared with computing its context again for each of them.

    python benchmarks/forking.py [--model tiny] [--context 2000] [--forks 16] [--repeats 5] [--device cpu]

computed   each session computes the context by itself and samples a token, one session after the other
forked     one session has computed the context; its forks are opened and sample a token each, all together

The time of the session that computes the context is not part of `forked`. Sessions that begin in the same pass share
their context without forks too; sessions that begin later compute it again.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import torch
from rich.console import Console
from rich.table import Table

from turnwise.core.protocols import Sampling
from turnwise.core.task import EpisodeKey, Task
from turnwise.engine.native.build import build_native
from turnwise.engine.native.engine import NativeEngine
from turnwise.engine.options import EngineOptions
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.load import load_model
from turnwise.render.renderer import Renderer

SAMPLING = Sampling(max_tokens=1)


def key(member: int) -> EpisodeKey:
    return EpisodeKey(run_seed=0, round=0, task=Task(env="benchmark", seed=0), member=member)


async def compute(engine: NativeEngine, context: Sequence[int], count: int) -> float:
    """Return the seconds that `count` sessions need for their first token, each for itself."""
    began = time.perf_counter()
    for member in range(count):
        async with engine.open(key(member)) as session:
            await session.generate(context, SAMPLING)
    return time.perf_counter() - began


async def fork(engine: NativeEngine, context: Sequence[int], count: int) -> float:
    """Return the seconds that `count` forks need for their first token."""
    async with engine.open(key(count)) as session, AsyncExitStack() as stack:
        await session.generate(context, SAMPLING)
        began = time.perf_counter()
        forks = [await stack.enter_async_context(session.fork(key(n), len(context))) for n in range(count)]
        await asyncio.gather(*(each.generate([], SAMPLING) for each in forks))
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--context", type=int, default=2000)
    parser.add_argument("--forks", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    loaded = load_model(arguments.model, attn_implementation=ATTENTION)
    loaded.model.to(arguments.device)
    renderer = Renderer(loaded.tokenizer, loaded.stop_ids)
    options = EngineOptions(slots=arguments.forks + 1, max_tokens=arguments.context + 64)
    engine = build_native(loaded.model, renderer, options, cache_share=0.4)
    generator = torch.Generator().manual_seed(0)
    context = torch.randint(3, 256, (arguments.context,), generator=generator).tolist()
    seconds: dict[str, list[float]] = {"computed": [], "forked": []}
    for repeat in range(arguments.repeats + 1):
        for name, measure in (("computed", compute), ("forked", fork)):
            found = asyncio.run(measure(engine, context, arguments.forks))
            if repeat:  # the first is a warm-up
                seconds[name].append(found)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    title = f"{arguments.forks} x {arguments.context} tokens, {arguments.model} on {arguments.device}"
    table = Table("", "seconds", "share of computed", title=title)
    for name, median in medians.items():
        table.add_row(name, f"{median:.3f}", f"{100 * median / medians['computed']:.1f} %")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
