"""Options for building an engine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """`slots` and `max_tokens` bind every engine."""

    slots: int
    """Sessions that are served at once. Further ones wait: in `open`, or in `generate`."""
    max_tokens: int
    """Tokens of the longest context, sampled ones included. Rollouts ask for no more."""
    pages: int | None = None
    """Pages of the KV cache on a GPU, from the memory plan; None: as many as engine.gpu_memory_utilization allows."""
    decode_steps: int = 4
    """Tokens that the native engine samples per session on a GPU before the host reads them."""
