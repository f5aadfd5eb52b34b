"""Tiny's start: a short, seeded warm-up on random legal play, so that it knows the format and nothing of the skill.

What is played is random, so what is learnt is how answers look, not which ones are good. Made once and cached.
"""

import asyncio
import hashlib
import inspect
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.core.random_streams import address, random_stream
from turnwise.core.samples import Sample, on_device
from turnwise.core.task import Task
from turnwise.data.demonstrations import build_demonstration
from turnwise.data.packing import pack
from turnwise.envs.answers import format_answer
from turnwise.envs.runner import TextEnvRunner
from turnwise.envs.seeds import SEEDS_PER_SPLIT, seed_for
from turnwise.envs.spec import EnvSpec
from turnwise.models.forward import batch_attention
from turnwise.models.loading.catalogue import cached_model_folder
from turnwise.models.loading.load import LoadedModel, device_of
from turnwise.models.loading.save import atomic_folder, write_model
from turnwise.models.loading.tiny import TINY_VERSION
from turnwise.render.renderer import Renderer
from turnwise.rewards.judge.judges import skip_judges
from turnwise.training.learner import token_logprobs
from turnwise.training.optimizer import Optimizer, OptimizerSettings, Schedule
from turnwise.training.sft import Script, play_demonstration

WARMUP_VERSION = 1
"""Raise it when anything below changes what comes out."""

EPISODES_A_STEP = 16
PLAYS_A_START = 4
"""Episodes from one start state: what they share is computed once."""
SETTINGS = OptimizerSettings(learning_rate=2e-3, betas=(0.9, 0.95), weight_decay=0.0, max_grad_norm=1.0)

Progress = Callable[[int, int], None]
Worlds = Sequence[tuple[EnvSpec, dict[str, Any]]]
"""Environments with their parameters."""


def load_warmed_up_tiny(
    worlds: Worlds, *, steps: int, seed: int, load: Callable[[str], LoadedModel], show: Progress
) -> tuple[LoadedModel, float]:
    """Return tiny, warmed up for these environments, and the seconds that took; from the cache if it is there.

    `load` loads a model by name or folder, with the caller's settings. Its dtype, device type and chat template are
    part of the cache key: the weights depend on them, and the cached tokenizer keeps the template.
    """
    began = time.perf_counter()
    fresh = load("tiny")
    about = [(kind.name, _source(kind), params) for kind, params in worlds]
    loading = (str(fresh.model.dtype), device_of(fresh.model).type, fresh.tokenizer.chat_template)
    key = address("warmup", WARMUP_VERSION, TINY_VERSION, about, steps, seed, loading)
    folder = cached_model_folder(f"tiny-{'+'.join(kind.name for kind, _ in worlds)}-{key:016x}")
    if not folder.exists():
        warm_up(fresh, worlds, steps=steps, seed=seed, show=show)
        with suppress(FileExistsError), atomic_folder(folder) as aside:  # another process may have been faster
            write_model(fresh.model, fresh.tokenizer, aside)
    return load(str(folder)), time.perf_counter() - began


def _source(kind: EnvSpec) -> str:
    """Return a digest of the environment's file, so that an edited environment gets a new warm-up."""
    try:
        text = Path(inspect.getfile(kind.cls)).read_bytes()
    except (OSError, TypeError):  # typed at a prompt
        text = b""
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def warm_up(loaded: LoadedModel, worlds: Worlds, *, steps: int, seed: int, show: Progress) -> None:
    """Teaches the model, in place, to continue transcripts of random play, as many of each environment."""
    renderer = Renderer(loaded.tokenizer)
    schedule = Schedule(kind="linear", total_steps=steps, warmup_steps=min(10, steps // 4), final_share=0.1)
    optimizer = Optimizer(list(loaded.model.parameters()), SETTINGS, schedule.share)
    device = loaded.model.get_input_embeddings().weight.device
    with asyncio.Runner() as runner:  # one loop for all: tools keep what they started
        for step in range(steps):
            numbers = range(step * EPISODES_A_STEP, (step + 1) * EPISODES_A_STEP)
            try:
                samples = runner.run(_episodes(worlds, renderer, seed, numbers))
            except (EnvironmentFailure, InfrastructureFailure) as failure:  # at random, it is not the agent's doing
                raise UserError(f"the environment failed while tiny was warmed up on it: {failure}") from failure
            batch = on_device(pack(samples), device)
            with batch_attention(batch):
                logprobs, *_ = token_logprobs(loaded.model, batch)
                (-logprobs.mean()).backward()
            optimizer.step(step)
            show(step + 1, steps)


async def _episodes(worlds: Worlds, renderer: Renderer, seed: int, numbers: Iterable[int]) -> list[Sample]:
    with skip_judges():
        return await asyncio.gather(*(random_episode(*_turn_of(worlds, n), renderer, seed, n) for n in numbers))


def _turn_of(worlds: Worlds, number: int) -> tuple[EnvSpec, dict[str, Any]]:
    return worlds[number // PLAYS_A_START % len(worlds)]


async def random_episode(kind: EnvSpec, params: dict[str, Any], renderer: Renderer, seed: int, number: int) -> Sample:
    """One episode of random legal answers as a sample; its mask is 1 on the answers and their ends."""
    index = address("warmup", seed, number // PLAYS_A_START) % SEEDS_PER_SPLIT
    task = Task(env=kind.name, params=params, seed=seed_for("train", index))

    luck: tuple[int, ...] = ()

    def make(*, attempt: int) -> TextEnvRunner:
        nonlocal luck
        luck = (attempt,) if attempt else ()
        return kind.make(task, number, attempt)

    def script() -> Script:
        rng = random_stream("warmup answers", seed, number, *luck)  # what breaks an environment is not said to it again
        return lambda env, said: env.random_answer(rng) or format_only(rng, said)

    exchanges, _ = await play_demonstration(make, script)
    return build_demonstration(number, exchanges, renderer)


def format_only(rng: random.Random, observation: str) -> str:
    """An answer of the right form that means nothing: a word of the observation, or a number."""
    words = [*observation.split()[:50], *map(str, range(101))]
    return format_answer([rng.choice(words)])
