"""A judge that is loaded in this process. Any model that turnwise can train can judge, through the same engine."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from turnwise.concurrency.per_loop import PerLoop
from turnwise.core.errors import UserError
from turnwise.core.images import find_images
from turnwise.core.messages import Message
from turnwise.core.protocols import Policy, Sampling
from turnwise.core.random_streams import address
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Stop
from turnwise.engine.engines import Native
from turnwise.engine.options import EngineOptions
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.catalogue import model_names
from turnwise.models.loading.hub import is_hub_name
from turnwise.models.loading.load import load_model
from turnwise.render.renderer import Renderer
from turnwise.rewards.judge.budget import JudgeBudget
from turnwise.rewards.judge.client import JudgeAnswer, identify_messages
from turnwise.rewards.judge.settings import LOCAL, JudgeSettings
from turnwise.text.suggestions import suggest

CACHE_SHARE = 0.3
"""Share of a GPU's free memory for the judge's KV cache. The learner needs the rest."""
DECODE_STEPS = 1
"""Tokens per request before the host reads them: answers are short."""
MAX_TOKENS = 32_768
"""Length of a request with its answer on a GPU, at most."""


@dataclass(frozen=True, slots=True)
class LoadedJudge:
    policy: Policy
    renderer: Renderer


class LocalJudgeModel:
    """A `JudgeModel` that samples from a model. The model is loaded when it is first asked."""

    def __init__(
        self, settings: JudgeSettings, budget: JudgeBudget, load: Callable[[], LoadedJudge] | None = None
    ) -> None:
        """`load`: loads the judge; None: the model that the settings name."""
        self._settings, self._budget = settings, budget
        if load is None:
            _check_model(settings.model)
        self._sampling = Sampling(max_tokens=settings.max_tokens, temperature=settings.temperature)
        self._judge = PerLoop(load or self._load)
        self._shown = Counter[str]()
        """Running requests by the hash of an image that they show."""

    @property
    def identity(self) -> tuple[str, str]:
        """A folder is identified by its path and modification time: other weights give other answers."""
        folder = Path(self._settings.model).expanduser()
        if not folder.exists():
            return LOCAL, self._settings.model
        newest = max((file.stat().st_mtime_ns for file in [folder, *folder.glob("*")]), default=0)
        return LOCAL, f"{folder.resolve()} {newest}"

    async def __call__(self, messages: Sequence[Message]) -> JudgeAnswer:
        judge = self._judge.get()
        if not judge.renderer.reads_images and any(message.images for message in messages):
            raise UserError(
                f"The judge {self._settings.model} reads text only, but observations contain images: choose a "
                "vision-language model."
            )
        ids = judge.renderer.start(messages)
        with self._keeping_images(judge.renderer, ids):
            reservation = await self._budget.reserve(len(ids) + self._sampling.max_tokens)
            cost = len(ids)
            try:
                async with judge.policy.open(_key(messages)) as session:
                    completion = await session.generate(ids, self._sampling)
                cost += len(completion.ids)
            finally:
                reservation.settle(cost)
        text = judge.renderer.parse(completion.ids, completion.stop).message.content
        return JudgeAnswer(text=text, cut=completion.stop is Stop.LENGTH)

    @contextmanager
    def _keeping_images(self, renderer: Renderer, ids: Sequence[int]) -> Iterator[None]:
        """Forget the images of a request after it, except those of other running requests."""
        shown = {image.hash for image in find_images(ids)}
        self._shown.update(shown)
        try:
            yield
        finally:
            self._shown -= Counter(shown)
            if renderer.images is not None:
                renderer.images.store.forget(shown - self._shown.keys())

    async def close(self) -> None:
        self._judge.take()

    def _load(self) -> LoadedJudge:
        renderer, model = self._model
        slots = self._settings.concurrency
        options = EngineOptions(slots=slots, max_tokens=MAX_TOKENS, decode_steps=DECODE_STEPS)
        return LoadedJudge(Native(gpu_memory_utilization=CACHE_SHARE).build(model, renderer, options), renderer)

    @cached_property
    def _model(self) -> tuple[Renderer, Any]:
        """Loaded once, also if several event loops use it."""
        loaded = load_model(self._settings.model, device=self._settings.device, attn_implementation=ATTENTION)
        loaded.model.requires_grad_(False)
        return Renderer(loaded.tokenizer, loaded.stop_ids, images=loaded.images), loaded.model


def _check_model(name: str) -> None:
    """Reject unknown names before the run starts: the model is loaded long after."""
    if name not in model_names() and not is_hub_name(name) and not (name and Path(name).expanduser().exists()):
        near = suggest(name, model_names())
        raise UserError(f'The judge: unknown model "{name}":{near} (or give a hub name, owner/name, or a folder).')


def _key(messages: Sequence[Message]) -> EpisodeKey:
    """Return a key that depends on the request alone: equal requests sample equal tokens."""
    seed = address("judge", identify_messages(messages))
    return EpisodeKey(run_seed=0, round=0, task=Task(env="judge", seed=seed))
