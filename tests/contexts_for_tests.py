"""Scripted conversations in any context mode and chat template, with a record of what the session received."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from episodes_for_tests import key_of, limits, task_of
from turnwise.core.messages import Message, system, user
from turnwise.core.protocols import Completion, Observation, Sampling, Session, StepResult
from turnwise.core.trajectory import Trajectory
from turnwise.engine.scripted import ScriptedEngine
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.render.renderer import Renderer
from turnwise.rollout.context import Context, FullContext
from turnwise.rollout.context_modes import (
    SummaryContext,
    SummaryHook,
    SummaryTrigger,
    TurnContext,
    WindowContext,
)
from turnwise.rollout.episode import run_episode

TEMPLATES = Path(__file__).parent / "data" / "templates"
TEMPLATE_NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
TURN_TOKENS = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<start_of_turn>", "<end_of_turn>", "<|tool|>"),
)


@cache
def renderer_of(template: str) -> Renderer:
    """Return tiny's tokenizer with another chat template and its special tokens; "tiny" keeps its own."""
    tokenizer = tiny_tokenizer()
    if template != "tiny":
        tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>"})
        tokenizer.add_tokens(list(TURN_TOKENS), special_tokens=True)
        tokenizer.chat_template = (TEMPLATES / f"{template}.jinja").read_text()
    return Renderer(tokenizer)


def window(renderer: Renderer, turns: int, keep_opening: bool = False) -> WindowContext:
    return WindowContext(renderer, turns=turns, keep_opening=keep_opening)


def summary(
    renderer: Renderer,
    *,
    tokens: int | None = None,
    turns: int | None = None,
    writer: SummaryHook | None = None,
    max_tokens: int = 32,
    keep_opening: bool = False,
) -> SummaryContext:
    return SummaryContext(
        renderer,
        when=SummaryTrigger(tokens=tokens, turns=turns),
        max_tokens=max_tokens,
        writer=writer,
        keep_opening=keep_opening,
    )


MODES: dict[str, Callable[[Renderer], Context]] = {
    "full": FullContext,
    "window 0": lambda renderer: window(renderer, 0),
    "window 1": lambda renderer: window(renderer, 1),
    "window 2": lambda renderer: window(renderer, 2),
    "window 1 with its opening": lambda renderer: window(renderer, 1, keep_opening=True),
    "turn": lambda renderer: TurnContext(renderer, turns=4, keep_opening=False),
    "turn 1 with its opening": lambda renderer: TurnContext(renderer, turns=1, keep_opening=True),
    "summary every turn": lambda renderer: summary(renderer, turns=1),
    "summary by tokens": lambda renderer: summary(renderer, tokens=60, keep_opening=True),
    "summary by a hook": lambda renderer: summary(renderer, turns=2, writer=lambda messages: f"{len(messages)} said"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """Messages of an environment and answers of a model, turn by turn."""

    opening: tuple[Message, ...]
    answers: tuple[tuple[Message, ...], ...]
    """Messages of the environment after each turn; the episode ends with the last."""
    said: tuple[str, ...]
    """Answers of the model, repeated from the first."""
    cut: bool = False
    """The model never samples the end of its turn."""


class TalkEnv:
    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self.heard: list[Message] = []

    async def start(self) -> Observation:
        return Observation(messages=self._talk.opening)

    async def step(self, action: Message) -> StepResult:
        self.heard.append(action)
        number = len(self.heard)
        last = number == len(self._talk.answers)
        return StepResult(messages=self._talk.answers[number - 1], reward=float(number), terminated=last)

    async def close(self) -> None:
        pass


@dataclass
class Witness:
    """Wraps a session: records every context, and gives every token a distinct log-probability."""

    session: Session
    contexts: list[list[int]] = field(default_factory=list)
    said: list[tuple[int, ...]] = field(default_factory=list)
    budgets: list[int] = field(default_factory=list)
    _held: list[int] = field(default_factory=list)
    _numbers: Any = field(default_factory=count)

    @property
    def sampling_s(self) -> float:
        return self.session.sampling_s

    async def generate(self, ids: Sequence[int], sampling: Sampling, restart: bool = False) -> Completion:
        completion = await self.session.generate(ids, sampling, restart)
        self._held = [*([] if restart else self._held), *ids]
        self.contexts.append(self._held)
        self._held = [*self._held, *completion.ids]
        self.said.append(completion.ids)
        self.budgets.append(sampling.max_tokens)
        return replace(completion, logprobs=tuple(-float(next(self._numbers)) for _ in completion.ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    trajectory: Trajectory
    witness: Witness
    env: TalkEnv


def play(talk: Talk, context: Context, renderer: Renderer, **bounds: Any) -> Played:
    """Play an episode. Answers are sampled byte by byte, unlike any tokenizer, so that re-encoding would be noticed."""
    ended = [] if talk.cut else [max(renderer.stop_ids)]
    policy = ScriptedEngine(
        lambda key, turn, ids: [*talk.said[turn % len(talk.said)].encode(), *ended], sorted(renderer.stop_ids)
    )
    key = key_of(task_of("test"))

    async def episode() -> Played:
        async with policy.open(key) as session:
            witness, env = Witness(session), TalkEnv(talk)
            trajectory = await run_episode(key, env, witness, context, limits(**bounds))
            return Played(trajectory=trajectory, witness=witness, env=env)

    return asyncio.run(episode())


WORDS = ("Left", "<answer>Up</answer>", "<think>hm</think> ok", "</s>", "<|im_end|>", "é", " ", "\n", "[INST]")
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map("".join)


@st.composite
def talks(draw: st.DrawFn) -> Talk:
    """Generate one to seven turns, with or without a system message, with none to two messages per turn."""
    opening = (user(draw(TEXTS)),)
    turns = draw(st.lists(st.lists(TEXTS, max_size=2), min_size=1, max_size=7))
    return Talk(
        opening=(system(draw(TEXTS)), *opening) if draw(st.booleans()) else opening,
        answers=tuple(tuple(user(text) for text in texts) for texts in turns),
        said=tuple(draw(st.lists(TEXTS, min_size=1, max_size=5))),
        cut=draw(st.booleans()),
    )
