"""Options for building an engine."""

from dataclasses import dataclass, field

from turnwise.config.resources import EngineConfig, SystemConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """`slots` and `max_tokens` bind every engine.

    Of `settings` and `system` it uses what its `EngineKind.reads` names.
    """

    slots: int
    """Sessions that are served at once. Further ones wait: in `open`, or in `generate`."""
    max_tokens: int
    """Tokens of the longest context, sampled ones included. Rollouts ask for no more."""
    pages: int | None = None
    """Pages of the KV cache on a GPU, from the memory plan; None: as many as system.cache_share allows."""
    settings: EngineConfig = field(default_factory=EngineConfig)
    system: SystemConfig = field(default_factory=SystemConfig)
