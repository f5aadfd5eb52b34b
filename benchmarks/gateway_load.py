"""Load the gateway: long requests, overhead of a call without the model, many agents at once with every token checked.

    python benchmarks/gateway_load.py                       # long requests, 100 concurrent calls, 1,000 agents
    python benchmarks/gateway_load.py --agents 200 --turns 3
    python benchmarks/gateway_load.py --long                # long requests only

The model is a policy that sleeps and writes how long it slept, so that a client can subtract it. Clients run in a
process of their own, over HTTP. `CPU` is the processor time of the gateway's process, which other load on the machine
hardly changes. `mismatches` are samples whose context or ids differ from the recorded turns, `lost` are calls that a
client was answered but that are not recorded.
"""

import argparse
import asyncio
import multiprocessing
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from rich.console import Console
from rich.table import Table

from turnwise.core.protocols import Completion, Sampling
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Stop, Turn
from turnwise.files.open_files import raise_open_file_limit
from turnwise.gateway.http_server import MAX_CONNECTIONS
from turnwise.gateway.server import Gateway
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.render.renderer import Renderer
from turnwise.rollout.episode import Limits

OPENING = "You are an agent. " * 50
"""About the length of a short system prompt."""

Sample = tuple[tuple[int, ...], tuple[int, ...]]
"""Ids of the context and sampled ids."""


@dataclass
class SleepingPolicy:
    """Sleeps for about `seconds` per turn and answers with the microseconds that it slept."""

    seconds: float
    stop_id: int
    samples: list[Sample] = field(default_factory=list)

    def open(self, key: EpisodeKey) -> AbstractAsyncContextManager["SleepingSession"]:
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator["SleepingSession"]:
        yield SleepingSession(self)


class SleepingSession:
    sampling_s = 0.0

    def __init__(self, policy: SleepingPolicy, context: Sequence[int] = ()) -> None:
        self._policy = policy
        self._context = list(context)

    async def generate(self, ids: Sequence[int], sampling: Sampling, restart: bool = False) -> Completion:
        began = time.perf_counter()
        self._context = [*([] if restart else self._context), *ids]
        await asyncio.sleep(self._policy.seconds * random.uniform(0.5, 1.5))
        said = (*str(round(1e6 * (time.perf_counter() - began))).encode(), self._policy.stop_id)
        self._policy.samples.append((tuple(self._context), said))
        self._context += said
        return Completion(ids=said, logprobs=(0.0,) * len(said), stop=Stop.EOS, temperature=1.0)

    @asynccontextmanager
    async def fork(self, key: EpisodeKey, length: int | None = None) -> AsyncIterator["SleepingSession"]:
        yield SleepingSession(self._policy, self._context[:length])


def run_agents(url: str, bearers: Sequence[str], turns: int, stagger_s: float) -> list[float]:
    """Run an agent per bearer at the same time; return the overhead of each answered call in seconds."""
    raise_open_file_limit(MAX_CONNECTIONS)

    async def agent(http: httpx2.AsyncClient, bearer: str) -> list[float]:
        await asyncio.sleep(random.uniform(0, stagger_s))
        messages = [{"role": "system", "content": OPENING}, {"role": "user", "content": f"Task {random.random()}"}]
        overheads = []
        for turn in range(turns):
            began = time.perf_counter()
            answer = await http.post("/v1/chat/completions", json={"messages": messages}, headers=authorised(bearer))
            seconds = time.perf_counter() - began
            reply = answer.raise_for_status().json()["choices"][0]["message"]
            overheads.append(seconds - int(reply["content"]) / 1e6)
            messages += [reply, {"role": "user", "content": f"Observation {turn}"}]
        return overheads

    async def together() -> list[float]:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx2.AsyncClient(base_url=url, timeout=600, limits=limits) as http:
            found = await asyncio.gather(*(agent(http, bearer) for bearer in bearers))
        return [seconds for each in found for seconds in each]

    return asyncio.run(together())


def authorised(bearer: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {bearer}"}


def recorded_samples(turns: Sequence[Turn]) -> list[Sample]:
    """Return the context and the action of each turn."""
    found = list[Sample]()
    context: tuple[int, ...] = ()
    for turn in turns:
        context = (*context, *turn.context_ids) if turn.extends else turn.context_ids
        found.append((context, turn.action_ids))
        context = (*context, *turn.action_ids)
    return found


async def measure(agents: int, turns: int, seconds: float, folder: Path) -> list[str]:
    """Return a row of the table."""
    renderer = Renderer(tiny_tokenizer())
    policy = SleepingPolicy(seconds=seconds, stop_id=min(renderer.stop_ids))
    limits = Limits(sampling=Sampling(max_tokens=64), max_tokens=32_768, timeout_s=600)
    async with Gateway(policy, renderer, limits, folder / f"{agents}.sqlite", max_sessions=agents) as gateway:
        keys = [EpisodeKey(run_seed=0, round=0, task=Task(env="load", seed=0), member=n) for n in range(agents)]
        episodes = [await gateway.open_episode(key) for key in keys]
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            began = time.process_time()
            bearers = [episode.bearer for episode in episodes]
            asked = asyncio.get_running_loop().run_in_executor(
                process, run_agents, gateway.url, bearers, turns, 2 * seconds
            )
            overheads = sorted(await asked)
            cpu_s = time.process_time() - began
        recorded = Counter(sample for episode in episodes for sample in recorded_samples(episode.turns()))
    mismatches = (Counter(policy.samples) - recorded).total() + (recorded - Counter(policy.samples)).total()
    lost = len(overheads) - recorded.total()
    times = [f"{1e3 * overheads[int(share * (len(overheads) - 1))]:.1f}" for share in (0.5, 0.99, 1)]
    cpu = f"{1e3 * cpu_s / len(overheads):.2f}"
    return [f"{agents:,}", f"{len(overheads):,}", *times, cpu, str(mismatches), str(lost)]


def long_requests(scale: float) -> dict[str, list[dict[str, str]]]:
    """Return requests by description. `scale`: share of the full number of messages."""

    def count(full: int) -> int:
        return max(1, round(full * scale))

    def users(number: int, text: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{index} {text}"} for index in range(number)]

    def results(number: int) -> list[dict[str, str]]:
        return [{"role": "tool", "tool_call_id": f"c{index}", "content": f"Result {index}"} for index in range(number)]

    return {
        f"{count(1000)} messages": users(count(1000), "A short message."),
        f"{count(500)} messages": users(count(500), "A short message."),
        f"{count(200)} tool results": [*users(1, "Go"), *results(count(200))],
        f"{count(200)} messages of 8 KB": users(count(200), "word " * 1600),
    }


def ask_beside(url: str, long: str, short: str, messages: list[dict[str, str]]) -> tuple[float, list[float]]:
    """Send a long request; return its seconds, and those of the short calls that another agent makes meanwhile."""

    async def both() -> tuple[float, list[float]]:
        async with httpx2.AsyncClient(base_url=url, timeout=600) as http:

            async def seconds_of(bearer: str, given: list[dict[str, str]]) -> float:
                began = time.perf_counter()
                answer = await http.post("/v1/chat/completions", json={"messages": given}, headers=authorised(bearer))
                answer.raise_for_status()
                return time.perf_counter() - began

            await seconds_of(short, [{"role": "user", "content": "Hi"}])
            asked = asyncio.create_task(seconds_of(long, messages))
            waits = list[float]()
            while not asked.done():
                waits.append(await seconds_of(short, [{"role": "user", "content": f"Hi {len(waits)}"}]))
            return await asked, waits

    return asyncio.run(both())


async def measure_long(scale: float) -> list[list[str]]:
    """Return the rows of the table of long requests."""
    renderer = Renderer(tiny_tokenizer())
    policy = SleepingPolicy(seconds=0.0, stop_id=min(renderer.stop_ids))
    limits = Limits(sampling=Sampling(max_tokens=64), max_tokens=2**20, timeout_s=600)
    rows = []
    async with Gateway(policy, renderer, limits, None, max_sessions=8) as gateway:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            for number, (name, messages) in enumerate(long_requests(scale).items()):
                keys = [
                    EpisodeKey(run_seed=0, round=number, task=Task(env="load", seed=0), member=member)
                    for member in range(2)
                ]
                long, short = [(await gateway.open_episode(key)).bearer for key in keys]
                began = time.process_time()
                asked = asyncio.get_running_loop().run_in_executor(
                    process, ask_beside, gateway.url, long, short, messages
                )
                seconds, waits = await asked
                cpu = f"{time.process_time() - began:.2f}"
                rows.append([name, f"{seconds:.2f}", cpu, str(len(waits)), f"{1e3 * max(waits):.0f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrent", type=int, default=100, help="concurrent calls of the first measurement")
    parser.add_argument("--agents", type=int, default=1000, help="agents of the second measurement")
    parser.add_argument("--turns", type=int, default=5, help="calls of each agent")
    parser.add_argument("--model-seconds", type=float, default=1.0, help="mean time of the model per call")
    parser.add_argument("--long", action="store_true", help="measure long requests only")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the messages of the long requests")
    args = parser.parse_args()
    headings = ("request", "seconds", "CPU s", "short calls meanwhile", "longest ms")
    requests = Table(*headings, title="A long request, and short calls of another agent")
    for row in asyncio.run(measure_long(args.scale)):
        requests.add_row(*row)
    Console().print(requests)
    if args.long:
        return
    columns = ("agents", "calls", "overhead p50 ms", "p99 ms", "max ms", "CPU ms/call", "mismatches", "lost")
    table = Table(*columns, title="Gateway without the model")
    with tempfile.TemporaryDirectory() as folder:
        for agents in (args.concurrent, args.agents):
            table.add_row(*asyncio.run(measure(agents, args.turns, args.model_seconds, Path(folder))))
    Console().print(table)


if __name__ == "__main__":
    main()
