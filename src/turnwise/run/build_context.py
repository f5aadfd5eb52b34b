"""Build and check the context mode of a run, with its summary hook."""

from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.render.renderer import Renderer
from turnwise.rollout.context import Context, FullContext
from turnwise.rollout.context_modes import SummaryContext, SummaryHook, SummaryTrigger, TurnContext, WindowContext
from turnwise.rollout.context_settings import ContextSettings, Summary, Turn, Window
from turnwise.rollout.settings import RolloutConfig
from turnwise.user_code.references import load_function


def build_context(settings: ContextSettings, rollout: RolloutConfig, renderer: Renderer) -> Context:
    match settings:
        case Window():
            return WindowContext(renderer, turns=settings.turns, keep_opening=settings.keep_opening)
        case Turn():
            return TurnContext(renderer, turns=settings.turns, keep_opening=settings.keep_opening)
        case Summary():
            return SummaryContext(
                renderer,
                when=SummaryTrigger(tokens=rollout.max_tokens // 2, turns=settings.every),
                max_tokens=settings.tokens,
                writer=load_summary_hook(settings.summary),
                keep_opening=settings.keep_opening,
            )
    return FullContext(renderer)


def check_context(config: Config) -> None:
    """Raise UserError for summaries that cannot fit after the turn that makes them due, and a missing summary hook."""
    if not isinstance(config.context, Summary):
        return
    limit = config.rollout.max_tokens
    needed = limit // 2 + config.rollout.max_new_tokens + config.context.tokens
    if needed >= limit:
        raise UserError(
            f"Half of rollout.max_tokens {limit}, at which a summary is due, rollout.max_new_tokens and "
            f"context.summary add up to {needed} tokens, which do not fit into it. Lower one of them, or raise "
            "rollout.max_tokens."
        )
    load_summary_hook(config.context.summary)


def load_summary_hook(summary: int | str) -> SummaryHook | None:
    """Load the FILE.py:function that writes summaries; None if the model writes them."""
    return None if isinstance(summary, int) else load_function(summary, "context.summary", ["128"])
