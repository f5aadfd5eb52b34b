"""A judge that is loaded here: any model that turnwise trains can judge, through the same engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError
from turnwise.core.messages import Message
from turnwise.core.protocols import Policy, Sampling
from turnwise.core.random_streams import address
from turnwise.core.suggestions import suggest
from turnwise.core.task import EpisodeKey, Task
from turnwise.engine.engines import ENGINES, EngineOptions
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.catalogue import model_names
from turnwise.models.loading.hub import is_hub_name
from turnwise.models.loading.load import load_model
from turnwise.render.renderer import Renderer
from turnwise.rewards.judge.budget import JudgeBudget
from turnwise.rewards.judge.settings import LOCAL, JudgeSettings
from turnwise.rewards.per_loop import PerLoop

CACHE_SHARE = 0.3
"""Of a GPU's free memory, for the judge's cache; the learner needs the rest."""
MAX_TOKENS = 32_768
"""Tokens of a request and its answer, on a GPU."""


@dataclass(frozen=True, slots=True)
class LoadedJudge:
    """A policy, and what turns messages into its tokens."""

    policy: Policy
    renderer: Renderer


class LocalJudgeModel:
    def __init__(
        self, settings: JudgeSettings, meter: JudgeBudget, make: Callable[[], LoadedJudge] | None = None
    ) -> None:
        """`make`: gives the model, which is loaded when it is first asked; none: as the settings name it."""
        self._settings, self._meter = settings, meter
        if make is None:
            _check_model(settings.model)
        self._sampling = Sampling(max_tokens=settings.max_tokens, temperature=settings.temperature)
        self._speaker = PerLoop(make or self._load)

    @property
    def identity(self) -> tuple[str, str]:
        """A folder by its place and its age: other weights give other answers."""
        folder = Path(self._settings.model).expanduser()
        if not folder.exists():
            return LOCAL, self._settings.model
        newest = max((file.stat().st_mtime_ns for file in [folder, *folder.glob("*")]), default=0)
        return LOCAL, f"{folder.resolve()} {newest}"

    async def __call__(self, messages: Sequence[Message]) -> str:
        speaker = self._speaker.get()
        ids = speaker.renderer.start(messages)
        ticket = await self._meter.sending(len(ids) + self._sampling.max_tokens)
        cost = len(ids)
        try:
            async with speaker.policy.open(_key(messages)) as session:
                completion = await session.generate(ids, self._sampling)
            cost += len(completion.ids)
        finally:
            ticket.close(cost)
        return speaker.renderer.parse(completion.ids, completion.stop).message.content

    def _load(self) -> LoadedJudge:
        renderer, model = self._model
        options = EngineOptions(slots=self._settings.concurrency, max_tokens=MAX_TOKENS, cache_share=CACHE_SHARE)
        return LoadedJudge(ENGINES["native"](model, renderer, options), renderer)

    @cached_property
    def _model(self) -> tuple[Renderer, Any]:
        """Loaded once, however many event loops there are."""
        loaded = load_model(self._settings.model, device=self._settings.device, attn_implementation=ATTENTION)
        loaded.model.requires_grad_(False)
        return Renderer(loaded.tokenizer, loaded.stop_ids), loaded.model


def _check_model(name: str) -> None:
    """What can be said of it before it is read: it is loaded long after a run has started."""
    if name not in model_names() and not is_hub_name(name) and not (name and Path(name).expanduser().exists()):
        near = suggest(name, model_names())
        raise UserError(f'the judge: unknown model "{name}":{near} (or give a hub name (owner/name) or a folder)')


def _key(messages: Sequence[Message]) -> EpisodeKey:
    """Equal requests draw equal tokens, where the temperature leaves them a choice."""
    seed = address("judge", [(message.role, message.content) for message in messages])
    return EpisodeKey(run_seed=0, round=0, task=Task(env="judge", seed=seed))
