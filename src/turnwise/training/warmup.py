"""Warm-up: a short, seeded training before a run, cached.

tiny and tiny_vlm learn random legal actions: the format of answers, and not which ones are good. If an environment
shows images, an untrained patch encoder first learns to describe pictures of random boards: without that,
reinforcement learning finds no relation between pictures and rewards.
"""

import asyncio
import hashlib
import inspect
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.core.messages import Exchange
from turnwise.core.protocols import Observation
from turnwise.core.random_streams import address, random_stream
from turnwise.core.samples import Sample, on_device
from turnwise.core.task import Task
from turnwise.data.demonstrations import build_demonstration
from turnwise.data.packing import pack
from turnwise.envs.answers import random_word
from turnwise.envs.seeds import SEEDS_PER_SPLIT, seed_for
from turnwise.envs.spec import EnvRunner, EnvSpec
from turnwise.files.disk import atomic_folder
from turnwise.models.forward import batch_attention
from turnwise.models.loading.catalogue import OTHER_CACHE, SMOLLM2_VISION, TINY, TINY_VLM, cached_model_folder
from turnwise.models.loading.load import LoadedModel, device_of
from turnwise.models.loading.save import write_model
from turnwise.models.loading.tiny import TINY_VERSION
from turnwise.models.vision.encoder import vision_parameters
from turnwise.models.vision.patch_encoder import pixels_per_token
from turnwise.render.renderer import Renderer
from turnwise.rewards.judge.judges import skip_judges
from turnwise.rollout.context import permanent_messages, prepend_text
from turnwise.training.describe_boards import Boards
from turnwise.training.learner import token_logprobs
from turnwise.training.optimizer import Optimizer, OptimizerSettings, Schedule
from turnwise.training.sft import Script, play_demonstration

WARMUP_VERSION = 5
"""Part of the cache key, as are the settings below; increment it when the result changes for another reason."""

EPISODES_PER_STEP = 16
ATTEMPTS = 10
"""Attempts per episode. More than in a rollout, since one failed episode stops the warm-up."""
EPISODES_PER_START = 4
"""Episodes from the same start state, whose common prefix is computed once."""
MAX_EPISODE_TOKENS = 16_384
"""Tokens of an episode at most. It is cut before the turn whose text has more characters than they can represent."""
SINGLE_TURNS = 8
"""Turns of an episode at most, if the model sees one turn at a time: later ones teach nothing about the format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmup:
    """Warm-up of a model. Steps are for each step of `model.warmup_steps`."""

    board_steps: int = 2
    """Steps of describing boards, if an environment shows images."""
    boards: Boards = field(default_factory=Boards)
    action_steps: int = 1
    """Steps of random actions."""
    action_tokens: int = 16_384
    """Tokens of a step of random actions at most: its episodes are cut after as many turns as fit. The format is
    learned from the first turns, and whole episodes of long games would take most of an hour."""
    learning_rate: float = 2e-3
    vision_learning_rate: float | None = None
    """Learning rate of the patch encoder; None: that of the language model, in the same optimizer."""


WARMUPS = {
    TINY: Warmup(),
    TINY_VLM: Warmup(),
    # A language model that can already write: its weights follow slowly while the encoder starts from nothing.
    SMOLLM2_VISION: Warmup(
        board_steps=8,
        boards=Boards(per_step=32, max_side=6),
        action_steps=0,
        learning_rate=1e-4,
        vision_learning_rate=1e-3,
    ),
}

Progress = Callable[[int, int], None]
WARMUP_SEED = 0
"""Seed of the warm-up of every run: its cached models serve all seeds."""
Environments = Sequence[tuple[EnvSpec, dict[str, Any]]]
"""Environments with their parameters."""


def has_warmup(name: str, environments: Environments) -> bool:
    """Return whether the model of this name is warmed up for these environments."""
    warmup = WARMUPS.get(name)
    return warmup is not None and (warmup.action_steps > 0 or _shows_images(environments))


def _shows_images(environments: Environments) -> bool:
    return any(spec.shows_images(params) for spec, params in environments)


def load_warmed_up(
    name: str,
    environments: Environments,
    *,
    steps: int,
    seed: int = WARMUP_SEED,
    load: Callable[[str], LoadedModel],
    show: Progress,
    single_turns: bool = False,
    timeout_s: float | None = None,
) -> tuple[LoadedModel, float]:
    """Return the model, warmed up for these environments, and the seconds that took; from the cache if possible.

    `load` loads a model by name or folder, with the caller's settings. Its dtype, device type and chat template are
    part of the cache key: the weights depend on them, and the cached tokenizer keeps the template.
    `single_turns`: the run shows the model the current turn only, and so does the warm-up. `timeout_s`: time limit of
    an episode.
    """
    began = time.perf_counter()
    fresh = load(name)
    played = environments if WARMUPS[name].action_steps else ()  # boards are the same for all environments
    about = [(spec.name, _source_digest(spec), params) for spec, params in played]
    loading = (str(fresh.model.dtype), device_of(fresh.model).type, fresh.tokenizer.chat_template)
    form = (SINGLE_TURNS,) if single_turns and played else ()
    key = address("warmup", WARMUP_VERSION, TINY_VERSION, asdict(WARMUPS[name]), about, steps, seed, loading, *form)
    title = "+".join(spec.name for spec, _ in played) or "boards"
    folder = cached_model_folder(f"{name}-{title}-{key:016x}")
    if not folder.exists():
        warm_up(fresh, environments, steps=steps, seed=seed, show=show, single_turns=single_turns, timeout_s=timeout_s)
        # another process may have been faster
        with suppress(FileExistsError), atomic_folder(folder, OTHER_CACHE) as temporary:
            write_model(fresh.model, fresh.tokenizer, temporary)
    return load(str(folder)), time.perf_counter() - began


def _source_digest(spec: EnvSpec) -> str:
    """Return a digest of the environment's file, so that an edited environment gets a new warm-up."""
    try:
        text = Path(inspect.getfile(spec.cls)).read_bytes()
    except (OSError, TypeError):  # defined at a prompt
        text = b""
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def warm_up(
    loaded: LoadedModel,
    environments: Environments,
    *,
    steps: int,
    seed: int,
    show: Progress,
    single_turns: bool = False,
    timeout_s: float | None = None,
) -> None:
    """Train the model, in place, on random boards if an environment shows images, then on random actions."""
    warmup, renderer = WARMUPS[loaded.name], Renderer(loaded.tokenizer, images=loaded.images)
    loaded.model.requires_grad_(True)  # an untrained vision tower cannot stay frozen
    board_steps = warmup.board_steps * steps if _shows_images(environments) else 0
    action_steps = warmup.action_steps * steps
    boards, total = warmup.boards, board_steps + action_steps

    @cache  # boards repeat
    def board(number: int) -> Sample:
        return boards.describe(renderer, pixels_per_token(loaded.model), seed, number)

    def describe(step: int) -> list[Sample]:
        return [board(number % boards.distinct) for number in _numbers(step, boards.per_step)]

    _train(loaded, warmup, describe, board_steps, lambda done: show(done, total))
    play = partial(
        _play_episodes,
        environments,
        renderer,
        seed,
        single_turns=single_turns,
        max_tokens=warmup.action_tokens,
        timeout_s=timeout_s,
    )
    with asyncio.Runner() as runner:  # one event loop for all steps: tools keep their connections

        def act(step: int) -> list[Sample]:
            samples, numbers = list[Sample](), _numbers(step, EPISODES_PER_STEP)
            try:
                # Not as the task's result, which asyncio's signal handling formats as text after every run.
                runner.run(play(numbers, samples))
            except (EnvironmentFailure, InfrastructureFailure) as failure:  # random actions cannot be to blame
                raise UserError(f"The environment failed during the warm-up of {loaded.name}: {failure}") from failure
            return samples

        _train(loaded, warmup, act, action_steps, lambda done: show(board_steps + done, total))


def train_on(loaded: LoadedModel, draw: Callable[[int], list[Sample]], steps: int, show: Callable[[int], None]) -> None:
    """Train the model, in place, on the samples that `draw` returns for each step."""
    loaded.model.requires_grad_(True)
    _train(loaded, WARMUPS[loaded.name], draw, steps, show)


def _numbers(step: int, count: int) -> range:
    return range(step * count, (step + 1) * count)


def _train(
    loaded: LoadedModel, warmup: Warmup, draw: Callable[[int], list[Sample]], steps: int, show: Callable[[int], None]
) -> None:
    """Maximise the log-likelihood of the answers in the samples that `draw` returns for each step."""
    schedule = Schedule(kind="linear", total_steps=steps, warmup_steps=min(10, steps // 4), final_share=0.1)
    optimizers = _optimizers(loaded.model, warmup, schedule)
    for step in range(steps):
        batch = on_device(pack(draw(step)), device_of(loaded.model))
        with batch_attention(loaded.model, batch):
            logprobs, *_ = token_logprobs(loaded.model, batch)
            (-logprobs.mean()).backward()
        for optimizer in optimizers:
            optimizer.step(step)
        show(step + 1)
    for optimizer in optimizers:
        optimizer.masters.release()


def _optimizers(model: Any, warmup: Warmup, schedule: Schedule) -> list[Optimizer]:
    """Return one optimizer for all parameters, or one for those of the vision tower and one for the others."""
    parts = [(list(model.parameters()), warmup.learning_rate)]
    if warmup.vision_learning_rate is not None:
        vision = vision_parameters(model)
        seen = {id(parameter) for parameter in vision}
        others = [parameter for parameter in model.parameters() if id(parameter) not in seen]
        parts = [(vision, warmup.vision_learning_rate), (others, warmup.learning_rate)]
    return [Optimizer(parameters, _optimizer_settings(rate), schedule.share) for parameters, rate in parts]


def _optimizer_settings(learning_rate: float) -> OptimizerSettings:
    return OptimizerSettings(learning_rate=learning_rate, weight_decay=0.0, max_grad_norm=1.0)


async def _play_episodes(
    environments: Environments,
    renderer: Renderer,
    seed: int,
    numbers: Iterable[int],
    samples: list[Sample],
    *,
    single_turns: bool,
    max_tokens: int,
    timeout_s: float | None,
) -> None:
    """Play an episode for each number and append the samples, which have at most `max_tokens` tokens in all."""
    chosen = [(number, *environments[number // EPISODES_PER_START % len(environments)]) for number in numbers]
    max_turns = SINGLE_TURNS if single_turns else None
    with skip_judges():
        episodes = await asyncio.gather(
            *(random_episode(spec, params, seed, number, max_turns, timeout_s) for number, spec, params in chosen)
        )

    short = [
        (number, _cut_long(exchanges, spec.name, renderer))
        for (number, spec, _), exchanges in zip(chosen, episodes, strict=True)
    ]

    def render(turns: int | None = None) -> list[list[Sample]]:
        cut = [(number, exchanges[:turns]) for number, exchanges in short]
        contexts = [(number, split_turns(first) if single_turns else [first]) for number, first in cut]
        return [
            [build_demonstration(number, conversation, renderer) for conversation in several]
            for number, several in contexts
        ]

    rendered = render()
    ends = [turn_ends(conversation) for conversation in rendered]
    turns = longest = max(map(len, ends))
    while turns > 1 and sum(end[:turns][-1] for end in ends) > max_tokens:
        turns -= 1
    if turns < longest:
        rendered = render(turns)
    samples += [sample for several in rendered for sample in several]


def _cut_long(exchanges: Sequence[Exchange], env: str, renderer: Renderer) -> Sequence[Exchange]:
    """Return the exchanges before the one that is too long to encode: the tokens of megabytes would fill the memory."""

    def fits(turns: int) -> bool:
        messages = [message for exchange in exchanges[:turns] for message in exchange.messages]
        return renderer.can_fit(messages, MAX_EPISODE_TOKENS)

    if fits(len(exchanges)):
        return exchanges
    turns = next(turns for turns in range(len(exchanges)) if not fits(turns + 1))
    if not turns:
        length = sum(len(message.content) for message in exchanges[0].messages)
        raise UserError(
            f"The first observation of {env} has {length:,} characters, more than {MAX_EPISODE_TOKENS:,} tokens can "
            "represent: shorten it."
        )
    return exchanges[:turns]


def turn_ends(samples: Iterable[Sample]) -> list[int]:
    """Return the number of tokens up to the end of each turn of an episode."""
    ends, before = list[int](), 0
    for sample in samples:
        for turn in range(int(sample.turn_ids.max()) + 1):
            ends.append(before + int((sample.turn_ids == turn).nonzero()[-1]) + 1)
        before += len(sample)
    return ends


async def random_episode(
    spec: EnvSpec,
    params: dict[str, Any],
    seed: int,
    number: int,
    max_turns: int | None = None,
    timeout_s: float | None = None,
) -> list[Exchange]:
    """Play an episode of random legal answers, of at most `max_turns` turns."""
    index = address("warmup", seed, number // EPISODES_PER_START) % SEEDS_PER_SPLIT
    task = Task(env=spec.name, params=params, seed=seed_for("train", index))

    retry: tuple[int, ...] = ()

    def make(*, attempt: int) -> EnvRunner:
        nonlocal retry
        retry = (attempt,) if attempt else ()
        return spec.make(task, number, attempt)

    def script() -> Script:
        rng = random_stream("warmup answers", seed, number, *retry)  # a retry does not repeat the failing answers
        return lambda env, observation: env.random_answer(rng) or random_word(rng, observation)

    exchanges, _ = await play_demonstration(make, script, attempts=ATTEMPTS, max_turns=max_turns, timeout_s=timeout_s)
    return exchanges


def split_turns(exchanges: Sequence[Exchange]) -> list[list[Exchange]]:
    """Return a conversation of one exchange for each turn, with the messages that every context keeps."""
    first = exchanges[0]
    opening = Observation(messages=first.messages, tools=first.tools, tools_in_words=first.tools_in_words)
    kept = permanent_messages(opening, keep_opening=False)
    later = [
        replace(
            first, messages=(*kept, *prepend_text("", exchange.messages)), answer=exchange.answer, calls=exchange.calls
        )
        for exchange in exchanges[1:]
    ]
    return [[first_message] for first_message in (first, *later)]
