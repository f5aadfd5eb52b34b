"""Conversations with the native engine, and their log-probabilities by a plain forward."""

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from models_for_tests import VOCABULARY, random_model
from turnwise.core.protocols import Completion, Sampling
from turnwise.core.task import EpisodeKey, Task
from turnwise.engine.native.engine import NativeEngine
from turnwise.engine.paged.runner import build_paged_runner
from turnwise.models.attention.interface import ATTENTION

STOP_ID = 1

Talks = list[tuple[EpisodeKey, list[list[int]]]]
"""Episode keys, and the ids that each session gets before each turn."""


def key(seed: int, member: int = 0) -> EpisodeKey:
    return EpisodeKey(run_seed=0, round=0, task=Task(env="test", seed=seed), member=member)


def text_of(ids: list[int]) -> str:
    return "".join(chr(ord("A") + token) for token in ids)


def make_engine(family: str = "llama", *, slots: int = 8, paged: bool = False, **settings: Any) -> NativeEngine:
    """`settings`: options of the paged runner."""
    model = random_model(family, ATTENTION)
    common = {"slots": slots, "stop_ids": [STOP_ID], "decode": text_of}
    runner = build_paged_runner(model, **common, **{"longest": 320} | settings) if paged else None
    return NativeEngine(model, **common, runner=runner)


def prompt(seed: int, length: int) -> list[int]:
    return torch.randint(3, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


async def talk(
    engine: NativeEngine, episode: EpisodeKey, contexts: Sequence[list[int]], sampling: Sampling
) -> list[Completion]:
    async with engine.open(episode) as session:
        return [await session.generate(context, sampling) for context in contexts]


def run_talks(engine: NativeEngine, talks: Talks, sampling: Sampling) -> list[list[Completion]]:
    async def together() -> list[list[Completion]]:
        return await asyncio.gather(*(talk(engine, each, contexts, sampling) for each, contexts in talks))

    return asyncio.run(together())


@cache
def plain_model(family: str) -> Any:
    """Return a model that nobody changes: making one takes longer than a forward."""
    return random_model(family, "eager")


def full_forward_logprobs(
    family: str, contexts: list[list[int]], said: list[Completion], temperature: float
) -> torch.Tensor:
    """Return the log-probabilities of all sampled tokens, from one forward over the whole conversation."""
    ids: list[int] = []
    sampled: list[int] = []
    for context, completion in zip(contexts, said, strict=True):
        ids += context
        sampled += range(len(ids), len(ids) + len(completion.ids))
        ids += completion.ids
    with torch.no_grad():
        logits = plain_model(family)(torch.tensor([ids])).logits[0]
    positions = torch.tensor(sampled)
    logprobs = (logits / temperature).log_softmax(-1)
    return logprobs[positions - 1, torch.tensor(ids)[positions]]
