"""B2: rolling out 128 FrozenLake episodes on the CPU with the tiny model: the native engine against `generate`.

    .venv/bin/python benchmarks/rollout_cpu.py [--threads 2] [--repeats 7] [--new-tokens 16]

Both sides play the same tasks with the same weights, prompts, environments and sampling (temperature 1), render and
parse with the same code, and return the log-probability of every sampled token. `generate` is run as its documentation
says: left padding, attention mask, KV cache, SDPA attention, inference mode, all live episodes in one batch (or in
batches of the size that proves fastest in the warm-up). It starts every turn from the whole context, as a loop around
`generate` does; the native engine keeps each session's cache.

fixed    every episode is 5 turns of exactly N sampled tokens, so that both sides do equal work whatever they sample
natural  the real game: a turn ends with its end token, an episode when it ends; the same policy, other luck
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.table import Table

from turnwise.config.schema import Config
from turnwise.core.protocols import Sampling
from turnwise.core.task import Task
from turnwise.core.trajectory import Stop, Trajectory
from turnwise.engine.native.engine import NativeEngine
from turnwise.envs.frozen_lake.env import FrozenLake
from turnwise.envs.registry import load_spec
from turnwise.envs.spec import EnvSpec
from turnwise.envs.text_env import Outcome, goes_on
from turnwise.models.loading.load import LoadedModel, load_model
from turnwise.recipes.build import load_policy
from turnwise.recipes.environment_mix import build_environment_mix
from turnwise.render.renderer import Renderer
from turnwise.rollout.collect import Collector
from turnwise.rollout.context import FullContext
from turnwise.rollout.limits import Limits
from turnwise.rollout.tasks import EnvMixEntry, TaskSource

EPISODES = 128
NATURAL_TOKENS = 32
"""Sampled tokens a turn, at most, in the natural variant: the recipe's limit."""
CHECK_TOLERANCE = 1e-3


class EndlessLake(FrozenLake):
    """Walk over the ice to the goal. A hole ends the game."""

    max_actions = None

    def step(self, action: str) -> Outcome:
        """The same board and moves, but nothing ends the episode before its last turn."""
        return goes_on(super().step(action).text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    name: str
    kind: EnvSpec
    groups: int
    group_size: int
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    """Empty: a turn is always `max_new_tokens` long."""

    def tasks(self, number: int) -> list[Task]:
        world = EnvMixEntry(env=self.kind.name, params=self.kind.check_params({}))
        return TaskSource(mix=(world,), run_seed=0).draw(number, self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One turn, from whichever side."""

    context_ids: tuple[int, ...]
    action_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


Episodes = list[list[Said]]
Result = TypeVar("Result")
Side = Callable[[int], Episodes]
"""Plays all episodes of one repeat, given its number."""


def native_side(work: Workload, loaded: LoadedModel) -> Side:
    renderer = Renderer(loaded.tokenizer)
    sampling = Sampling(max_tokens=work.max_new_tokens, temperature=1.0)
    collector = Collector(
        policy=NativeEngine(loaded.model, slots=EPISODES, stop_ids=work.stop_ids, decode=renderer.decode),
        make_env=work.kind.make,
        context=FullContext(renderer),
        limits=Limits(sampling=sampling, max_tokens=4096, timeout_s=3600),
        in_flight=EPISODES,
        attempts=1,
        run_seed=0,
    )

    def play(number: int) -> Episodes:
        collected = _run(collector.collect(work.tasks(number), group_size=work.group_size, round=number))
        return [_turns(trajectory) for group in collected.groups for trajectory in group.trajectories]

    return play


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run`, but for its habit of writing out the result (for the handler of Ctrl-C): milliseconds here."""
    results: list[Result] = []

    async def keep() -> None:
        results.append(await work)

    asyncio.run(keep())
    return results[0]


def _turns(trajectory: Trajectory) -> list[Said]:
    return [
        Said(context_ids=turn.context_ids, action_ids=turn.action_ids, logprobs=turn.action_logprobs)
        for turn in trajectory.turns
    ]


def generate_side(work: Workload, loaded: LoadedModel, batch_size: int) -> Side:
    renderer = Renderer(loaded.tokenizer)
    generate = Generate(loaded, work, batch_size)

    async def play(number: int) -> Episodes:
        tasks = [task for task in work.tasks(number) for _ in range(work.group_size)]
        envs = [work.kind.make(task, index % work.group_size) for index, task in enumerate(tasks)]
        pending = [renderer.start((await env.start()).messages) for env in envs]
        episodes: Episodes = [[] for _ in envs]
        live = list(range(len(envs)))
        while live:
            contexts = [_context(episodes[index], pending[index]) for index in live]
            going_on = []
            for index, (ids, logprobs) in zip(live, generate(contexts), strict=True):
                stop = Stop.EOS if ids[-1] in work.stop_ids else Stop.LENGTH
                result = await envs[index].step(renderer.parse(ids, stop).message)
                episodes[index].append(
                    Said(context_ids=tuple(pending[index]), action_ids=tuple(ids), logprobs=tuple(logprobs))
                )
                if not result.over:
                    pending[index] = renderer.extend(result.messages, stop)
                    going_on.append(index)
            live = going_on
        return episodes

    return lambda number: _run(play(number))


def _context(turns: Sequence[Said], pending: Sequence[int]) -> list[int]:
    """All that the model has seen and said, as the ids that were sampled."""
    return [*(token for turn in turns for token in (*turn.context_ids, *turn.action_ids)), *pending]


@dataclass(frozen=True, slots=True)
class Generate:
    """transformers' `generate` on a list of contexts of any length."""

    loaded: LoadedModel
    work: Workload
    batch_size: int

    def __call__(self, contexts: Sequence[list[int]]) -> list[tuple[list[int], list[float]]]:
        """Ids and log-probabilities of one turn for each; neighbours in length share a batch."""
        order = sorted(range(len(contexts)), key=lambda index: len(contexts[index]))
        answers: dict[int, tuple[list[int], list[float]]] = {}
        for start in range(0, len(order), self.batch_size):
            part = order[start : start + self.batch_size]
            answers |= zip(part, self._batch([contexts[index] for index in part]), strict=True)
        return [answers[index] for index in range(len(contexts))]

    @torch.inference_mode()
    def _batch(self, contexts: Sequence[list[int]]) -> list[tuple[list[int], list[float]]]:
        longest, pad = max(map(len, contexts)), self.loaded.tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (longest - len(context)) + context for context in contexts])
        mask = torch.tensor([[0] * (longest - len(context)) + [1] * len(context) for context in contexts])
        output = self.loaded.model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            use_cache=True,
            max_new_tokens=self.work.max_new_tokens,
            pad_token_id=pad,
            eos_token_id=list(self.work.stop_ids) or -1,
            return_dict_in_generate=True,
            output_logits=True,
        )
        sampled = output.sequences[:, longest:]
        columns = [
            step.log_softmax(dim=-1).gather(1, sampled[:, number, None]) for number, step in enumerate(output.logits)
        ]
        rows = zip(sampled.tolist(), torch.cat(columns, dim=1).tolist(), strict=True)
        return [self._cut(row, logprobs) for row, logprobs in rows]

    def _cut(self, row: list[int], logprobs: list[float]) -> tuple[list[int], list[float]]:
        """Without what `generate` fills a row with after its end."""
        end = next((place + 1 for place, token in enumerate(row) if token in self.work.stop_ids), len(row))
        return row[:end], logprobs[:end]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    seconds: float
    episodes: Episodes

    @property
    def sampled(self) -> int:
        return sum(len(turn.action_ids) for turns in self.episodes for turn in turns)


def timed(side: Side, number: int) -> Timed:
    began = time.perf_counter()
    episodes = side(number)
    return Timed(seconds=time.perf_counter() - began, episodes=episodes)


def check(work: Workload, native: Episodes, other: Episodes, model: Any) -> None:
    """Both sides began with the same prompts, did equal work, and their log-probabilities are the model's own."""
    assert [turns[0].context_ids for turns in native] == [turns[0].context_ids for turns in other]
    if not work.stop_ids:
        shapes = [[[len(turn.action_ids) for turn in turns] for turns in side] for side in (native, other)]
        assert shapes[0] == shapes[1] == [[work.max_new_tokens] * FrozenLake.max_turns] * EPISODES
    for turns in (*native[::40], *other[::40]):
        ids = torch.tensor(_context(turns, ()))
        with torch.inference_mode():
            logprobs = model(ids[None], use_cache=False).logits[0].log_softmax(dim=-1)
        place = 0
        for turn in turns:
            place += len(turn.context_ids)
            for token, logprob in zip(turn.action_ids, turn.logprobs, strict=True):
                assert abs(float(logprobs[place - 1, token]) - logprob) < CHECK_TOLERANCE
                place += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    work: Workload
    native: list[Timed]
    other: list[Timed]
    batch_size: int

    def row(self) -> list[str]:
        ratios = [there.seconds / here.seconds for here, there in zip(self.native, self.other, strict=True)]
        return [
            self.work.name,
            *(cell for side in (self.native, self.other) for cell in self._cells(side)),
            str(self.batch_size),
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
        ]

    @staticmethod
    def _cells(side: list[Timed]) -> list[str]:
        seconds = statistics.median(each.seconds for each in side)
        rate = statistics.median(each.sampled / each.seconds for each in side)
        return [f"{seconds:.3f}", f"{EPISODES / seconds:.0f}", f"{rate:.0f}"]


def measure(
    work: Workload, ours: LoadedModel, theirs: LoadedModel, repeats: int, batch_sizes: Sequence[int]
) -> Measured:
    native = native_side(work, ours)
    others = {size: generate_side(work, theirs, size) for size in batch_sizes}
    first = native(0)
    for side in others.values():
        side(0)
    warm = {size: timed(side, 0) for size, side in others.items()}
    check(work, first, warm[batch_sizes[0]].episodes, theirs.model)
    best = min(warm, key=lambda size: warm[size].seconds)
    here, there = [], []
    for number in range(1, repeats + 1):
        here.append(timed(native, number))
        there.append(timed(others[best], number))
    return Measured(work=work, native=here, other=there, batch_size=best)


def workloads(new_tokens: int, stop_ids: tuple[int, ...]) -> list[Workload]:
    real, endless = load_spec("frozen_lake"), EnvSpec(name="endless_lake", id="", cls=EndlessLake)
    return [
        Workload(
            name=f"{name}, {f'{groups} groups of {EPISODES // groups}' if groups < EPISODES else f'{EPISODES} tasks'}",
            kind=kind,
            groups=groups,
            group_size=EPISODES // groups,
            max_new_tokens=tokens,
            stop_ids=stops,
        )
        for name, kind, tokens, stops in (
            (f"fixed, 5 x {new_tokens} tokens", endless, new_tokens, ()),
            ("natural", real, NATURAL_TOKENS, stop_ids),
        )
        for groups in (8, EPISODES)
    ]


def table_of(measured: Sequence[Measured], threads: int, repeats: int) -> Table:
    table = Table(title=f"{EPISODES} episodes, {threads} threads, medians of {repeats} alternating repeats")
    table.add_column("episodes")
    for side in ("turnwise", "generate"):
        for unit in ("s", "episodes/s", "sampled tokens/s"):
            table.add_column(f"{side}\n{unit}", justify="right")
    table.add_column("its\nbatch", justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("from .. to", justify="right")
    for each in measured:
        table.add_row(*each.row())
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="default: one a core")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=16, help="sampled tokens a turn of the fixed variant")
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[128, 64, 32], help="batch sizes generate may choose from"
    )
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    ours, _ = load_policy(Config(), build_environment_mix(Config()), lambda done, total: None)
    theirs = load_model(ours.name, attn_implementation="sdpa")
    measured = [
        measure(work, ours, theirs, given.repeats, given.batch) for work in workloads(given.new_tokens, ours.stop_ids)
    ]
    Console(width=150).print(table_of(measured, given.threads, given.repeats))


if __name__ == "__main__":
    main()
