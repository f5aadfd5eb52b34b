"""The context modes by name, what their settings must hold, and the hook that may write summaries."""

from collections.abc import Callable

from turnwise.config.schema import Config, ContextConfig
from turnwise.core.errors import UserError
from turnwise.envs.registry import load_function
from turnwise.render.renderer import Renderer
from turnwise.rollout.context import Context, FullContext
from turnwise.rollout.context_modes import (
    SummaryContext,
    SummaryHook,
    SummaryTrigger,
    TurnContext,
    TurnMemory,
    WindowContext,
)


def build_context(config: Config, renderer: Renderer) -> Context:
    return CONTEXTS[config.context.mode](config, renderer)


def _full(config: Config, renderer: Renderer) -> Context:
    return FullContext(renderer)


def _window(config: Config, renderer: Renderer) -> Context:
    given = config.context
    return WindowContext(renderer, turns=given.turns, slack=given.slack, keep_opening=given.keep_opening)


def _turn(config: Config, renderer: Renderer) -> Context:
    given = config.context
    memory = TurnMemory(form=given.memory, turns=given.turns, chars=given.memory_chars, rewards=given.memory_rewards)
    return TurnContext(renderer, memory=memory, keep_opening=given.keep_opening)


def _summary(config: Config, renderer: Renderer) -> Context:
    given = config.context
    return SummaryContext(
        renderer,
        when=SummaryTrigger(tokens=_summary_at(config), turns=given.summary_every),
        prompt=given.summary_prompt,
        max_tokens=given.summary_tokens,
        writer=load_writer(given.summary_by),
        keep_opening=given.keep_opening,
    )


CONTEXTS: dict[str, Callable[[Config, Renderer], Context]] = {
    "full": _full,
    "window": _window,
    "turn": _turn,
    "summary": _summary,
}


READ_IN = {
    "turns": ("window", "turn"),
    "slack": ("window",),
    "keep_opening": ("window", "turn", "summary"),
    **dict.fromkeys(("memory", "memory_chars", "memory_rewards"), ("turn",)),
    **dict.fromkeys(("summary_at", "summary_every", "summary_tokens", "summary_by", "summary_prompt"), ("summary",)),
}
"""Which modes read a setting of the context: one that the mode does not read is a mistake, not a wish."""


def check_context(config: Config) -> None:
    """Refuses settings that the mode does not read, summaries that cannot fit, and a hook that is not there."""
    given, default = config.context, ContextConfig()
    for name, modes in READ_IN.items():
        if given.mode not in modes and getattr(given, name) != getattr(default, name):
            raise UserError(
                f"context.{name} has no effect with context.mode {given.mode}: leave it out, or choose "
                f"context.mode {' or '.join(modes)}"
            )
    if given.mode == "summary":
        _check_room(config)
        load_writer(given.summary_by)


def _check_room(config: Config) -> None:
    """A summary is asked for after the turn that made the context too long, and has to fit in behind it."""
    at, limit = _summary_at(config), config.rollout.max_tokens
    needed = at + config.rollout.max_new_tokens + config.context.summary_tokens
    if needed >= limit:
        raise UserError(
            f"context.summary_at {at}, rollout.max_new_tokens and context.summary_tokens make {needed} tokens, which "
            f"leaves no room in rollout.max_tokens {limit}: lower one of them, or raise the last"
        )


def _summary_at(config: Config) -> int:
    return config.context.summary_at or config.rollout.max_tokens // 2


def load_writer(summary_by: str) -> SummaryHook | None:
    """The function FILE.py:function that writes summaries; None where the model does."""
    return None if summary_by == "model" else load_function(summary_by, "context.summary_by", ["model"])
