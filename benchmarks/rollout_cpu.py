"""B2: rollout of 128 FrozenLake episodes on the CPU with the tiny model: the native engine compared with `generate`.

    .venv/bin/python benchmarks/rollout_cpu.py [--threads 2] [--repeats 7] [--new-tokens 16]

Both sides play the same tasks with the same weights, prompts, environments and sampling (temperature 1), render and
parse with the same code, and return the log-probability of every sampled token. `generate` is used as documented: left
padding, attention mask, KV cache, SDPA attention, inference mode, all running episodes in one batch (or in batches of
the size that is fastest in the warm-up). It processes the whole context in every turn, as a loop around `generate`
does; the native engine keeps the KV cache of each session.

fixed    every episode is 5 turns of exactly N sampled tokens, so that both sides do equal work
natural  turns end with their end token and episodes when the game is over; both sides sample with other randomness
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
from turnwise.render.renderer import Renderer
from turnwise.rollout.collect import Collector
from turnwise.rollout.context import FullContext
from turnwise.rollout.episode import Limits
from turnwise.rollout.tasks import EnvMixEntry, TaskSource
from turnwise.run.environment_mix import build_environment_mix
from turnwise.run.load_policy import load_policy

EPISODES = 128
NATURAL_TOKENS = 32
"""Maximum of sampled tokens per turn in the natural variant, as in the recipe."""
CHECK_TOLERANCE = 1e-3


class EndlessLake(FrozenLake):
    """Walk over the ice to the goal. A hole ends the game."""

    max_actions = None

    def step(self, action: str) -> Outcome:
        """Same board and moves, but the episode always lasts until its last turn."""
        return goes_on(super().step(action).text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    name: str
    spec: EnvSpec
    groups: int
    group_size: int
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    """Ids that end a turn; empty: every turn has `max_new_tokens` tokens."""

    def tasks(self, number: int) -> list[Task]:
        entry = EnvMixEntry(env=self.spec.name, params=self.spec.check_params({}))
        return TaskSource(mix=(entry,), run_seed=0).draw(number, self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTurn:
    """One turn of either side."""

    context_ids: tuple[int, ...]
    action_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


Episodes = list[list[PlayedTurn]]
Result = TypeVar("Result")
Side = Callable[[int], Episodes]
"""(number of the repeat) -> all its episodes."""


def native_side(work: Workload, loaded: LoadedModel) -> Side:
    renderer = Renderer(loaded.tokenizer)
    sampling = Sampling(max_tokens=work.max_new_tokens, temperature=1.0)
    collector = Collector(
        policy=NativeEngine(loaded.model, slots=EPISODES, stop_ids=work.stop_ids, decode=renderer.decode),
        make_env=work.spec.make,
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
    """Like `asyncio.run`, which also formats the result (for its Ctrl-C handler): milliseconds here."""
    results: list[Result] = []

    async def keep() -> None:
        results.append(await work)

    asyncio.run(keep())
    return results[0]


def _turns(trajectory: Trajectory) -> list[PlayedTurn]:
    return [
        PlayedTurn(context_ids=turn.context_ids, action_ids=turn.action_ids, logprobs=turn.action_logprobs)
        for turn in trajectory.turns
    ]


def generate_side(work: Workload, loaded: LoadedModel, batch_size: int) -> Side:
    renderer = Renderer(loaded.tokenizer)
    generate = Generate(loaded, work, batch_size)

    async def play(number: int) -> Episodes:
        tasks = [task for task in work.tasks(number) for _ in range(work.group_size)]
        envs = [work.spec.make(task, index % work.group_size) for index, task in enumerate(tasks)]
        pending = [renderer.start((await env.start()).messages) for env in envs]
        episodes: Episodes = [[] for _ in envs]
        live = list(range(len(envs)))
        while live:
            contexts = [_context(episodes[index], pending[index]) for index in live]
            still_live = []
            for index, (ids, logprobs) in zip(live, generate(contexts), strict=True):
                stop = Stop.EOS if ids[-1] in work.stop_ids else Stop.LENGTH
                result = await envs[index].step(renderer.parse(ids, stop).message)
                episodes[index].append(
                    PlayedTurn(context_ids=tuple(pending[index]), action_ids=tuple(ids), logprobs=tuple(logprobs))
                )
                if not result.over:
                    pending[index] = renderer.extend(result.messages, stop)
                    still_live.append(index)
            live = still_live
        return episodes

    return lambda number: _run(play(number))


def _context(turns: Sequence[PlayedTurn], pending: Sequence[int]) -> list[int]:
    """Return the whole context, with the sampled ids."""
    return [*(token for turn in turns for token in (*turn.context_ids, *turn.action_ids)), *pending]


@dataclass(frozen=True, slots=True)
class Generate:
    """Runs transformers' `generate` on contexts of any length."""

    loaded: LoadedModel
    work: Workload
    batch_size: int

    def __call__(self, contexts: Sequence[list[int]]) -> list[tuple[list[int], list[float]]]:
        """Return ids and log-probabilities of one turn for each context. Contexts of similar length share a batch."""
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
        """Remove the padding that `generate` adds after the end of a row."""
        end = next((index + 1 for index, token in enumerate(row) if token in self.work.stop_ids), len(row))
        return row[:end], logprobs[:end]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    seconds: float
    episodes: Episodes

    @property
    def sampled(self) -> int:
        return sum(len(turn.action_ids) for turns in self.episodes for turn in turns)


def measure_side(side: Side, number: int) -> Measurement:
    began = time.perf_counter()
    episodes = side(number)
    return Measurement(seconds=time.perf_counter() - began, episodes=episodes)


def check(work: Workload, native: Episodes, other: Episodes, model: Any) -> None:
    """Check that both sides had the same prompts, did equal work, and returned the model's log-probabilities."""
    assert [turns[0].context_ids for turns in native] == [turns[0].context_ids for turns in other]
    if not work.stop_ids:
        shapes = [[[len(turn.action_ids) for turn in turns] for turns in side] for side in (native, other)]
        assert shapes[0] == shapes[1] == [[work.max_new_tokens] * FrozenLake.max_turns] * EPISODES
    for turns in (*native[::40], *other[::40]):
        ids = torch.tensor(_context(turns, ()))
        with torch.inference_mode():
            logprobs = model(ids[None], use_cache=False).logits[0].log_softmax(dim=-1)
        position = 0
        for turn in turns:
            position += len(turn.context_ids)
            for token, logprob in zip(turn.action_ids, turn.logprobs, strict=True):
                assert abs(float(logprobs[position - 1, token]) - logprob) < CHECK_TOLERANCE
                position += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    work: Workload
    native: list[Measurement]
    other: list[Measurement]
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
    def _cells(side: list[Measurement]) -> list[str]:
        seconds = statistics.median(each.seconds for each in side)
        rate = statistics.median(each.sampled / each.seconds for each in side)
        return [f"{seconds:.3f}", f"{EPISODES / seconds:.0f}", f"{rate:.0f}"]


def measure(
    work: Workload, ours: LoadedModel, theirs: LoadedModel, repeats: int, batch_sizes: Sequence[int]
) -> Comparison:
    native = native_side(work, ours)
    others = {size: generate_side(work, theirs, size) for size in batch_sizes}
    first = native(0)
    for side in others.values():
        side(0)
    warm = {size: measure_side(side, 0) for size, side in others.items()}
    check(work, first, warm[batch_sizes[0]].episodes, theirs.model)
    best = min(warm, key=lambda size: warm[size].seconds)
    here, there = [], []
    for number in range(1, repeats + 1):
        here.append(measure_side(native, number))
        there.append(measure_side(others[best], number))
    return Comparison(work=work, native=here, other=there, batch_size=best)


def workloads(new_tokens: int, stop_ids: tuple[int, ...]) -> list[Workload]:
    real, endless = load_spec("frozen_lake"), EnvSpec(name="endless_lake", id="", cls=EndlessLake)
    return [
        Workload(
            name=f"{name}, {f'{groups} groups of {EPISODES // groups}' if groups < EPISODES else f'{EPISODES} tasks'}",
            spec=spec,
            groups=groups,
            group_size=EPISODES // groups,
            max_new_tokens=tokens,
            stop_ids=stops,
        )
        for name, spec, tokens, stops in (
            (f"fixed, 5 x {new_tokens} tokens", endless, new_tokens, ()),
            ("natural", real, NATURAL_TOKENS, stop_ids),
        )
        for groups in (8, EPISODES)
    ]


def table_of(measured: Sequence[Comparison], threads: int, repeats: int) -> Table:
    table = Table(title=f"{EPISODES} episodes, {threads} threads, medians of {repeats} alternating repeats")
    table.add_column("episodes")
    for side in ("turnwise", "generate"):
        for unit in ("s", "episodes/s", "sampled tokens/s"):
            table.add_column(f"{side}\n{unit}", justify="right")
    table.add_column("generate\nbatch", justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("from .. to", justify="right")
    for each in measured:
        table.add_row(*each.row())
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="default: one per core")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=16, help="sampled tokens per turn of the fixed variant")
    parser.add_argument("--batch", type=int, nargs="+", default=[128, 64, 32], help="batch sizes to try for generate")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = Config()
    ours, _ = load_policy(config, build_environment_mix(config.env, config.agent), lambda done, total: None)
    theirs = load_model(ours.name, attn_implementation="sdpa")
    measured = [
        measure(work, ours, theirs, args.repeats, args.batch) for work in workloads(args.new_tokens, ours.stop_ids)
    ]
    Console(width=150).print(table_of(measured, args.threads, args.repeats))


if __name__ == "__main__":
    main()
