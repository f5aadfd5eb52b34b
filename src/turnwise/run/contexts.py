"""Build and check the context mode of a run, with its summary hook."""

from collections.abc import Callable

from turnwise.config.schema import Config, ContextConfig
from turnwise.core.errors import UserError
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
from turnwise.user_code.references import load_function


def build_context(config: Config, renderer: Renderer) -> Context:
    return CONTEXTS[config.context.mode](config, renderer)


def _full(config: Config, renderer: Renderer) -> Context:
    return FullContext(renderer)


def _window(config: Config, renderer: Renderer) -> Context:
    settings = config.context
    return WindowContext(renderer, turns=settings.turns, slack=settings.slack, keep_opening=settings.keep_opening)


def _turn(config: Config, renderer: Renderer) -> Context:
    settings = config.context
    memory = TurnMemory(
        form=settings.memory, turns=settings.turns, chars=settings.memory_chars, rewards=settings.memory_rewards
    )
    return TurnContext(renderer, memory=memory, keep_opening=settings.keep_opening)


def _summary(config: Config, renderer: Renderer) -> Context:
    settings = config.context
    return SummaryContext(
        renderer,
        when=SummaryTrigger(tokens=_summary_at(config), turns=settings.summary_every),
        prompt=settings.summary_prompt,
        max_tokens=settings.summary_tokens,
        writer=load_summary_hook(settings.summary_by),
        keep_opening=settings.keep_opening,
    )


CONTEXTS: dict[str, Callable[[Config, Renderer], Context]] = {
    "full": _full,
    "window": _window,
    "turn": _turn,
    "summary": _summary,
}


MODES_USING = {
    "turns": ("window", "turn"),
    "slack": ("window",),
    "keep_opening": ("window", "turn", "summary"),
    **dict.fromkeys(("memory", "memory_chars", "memory_rewards"), ("turn",)),
    **dict.fromkeys(("summary_at", "summary_every", "summary_tokens", "summary_by", "summary_prompt"), ("summary",)),
}
"""Modes that use each setting of `context`."""


def check_context(config: Config) -> None:
    """Raise UserError for settings without effect, summaries that cannot fit, and a missing summary hook."""
    settings, default = config.context, ContextConfig()
    for name, modes in MODES_USING.items():
        if settings.mode not in modes and getattr(settings, name) != getattr(default, name):
            raise UserError(
                f"context.{name} has no effect with context.mode {settings.mode}. Leave it out, or choose "
                f"context.mode {' or '.join(modes)}."
            )
    if settings.mode == "summary":
        _check_summary_fits(config)
        load_summary_hook(settings.summary_by)


def _check_summary_fits(config: Config) -> None:
    """Raise UserError if a summary would not fit after the turn that makes it due."""
    at, limit = _summary_at(config), config.rollout.max_tokens
    needed = at + config.rollout.max_new_tokens + config.context.summary_tokens
    if needed >= limit:
        raise UserError(
            f"context.summary_at {at}, rollout.max_new_tokens and context.summary_tokens add up to {needed} tokens, "
            f"which do not fit into rollout.max_tokens {limit}. Lower one of them, or raise rollout.max_tokens."
        )


def _summary_at(config: Config) -> int:
    return config.context.summary_at or config.rollout.max_tokens // 2


def load_summary_hook(summary_by: str) -> SummaryHook | None:
    """Load the FILE.py:function that writes summaries; None if the model writes them."""
    return None if summary_by == "model" else load_function(summary_by, "context.summary_by", ["model"])
