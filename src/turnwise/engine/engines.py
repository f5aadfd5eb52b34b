"""The engines by name. An engine generates tokens for sessions; see `Engine` in `core/protocols.py`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from turnwise.config.schema import EngineConfig
from turnwise.core.protocols import Engine
from turnwise.engine.native.engine import NativeEngine
from turnwise.engine.paged.runner import build_paged_runner
from turnwise.engine.vllm.build import build_vllm_engine
from turnwise.models.loading.load import device_of
from turnwise.render.renderer import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    slots: int
    """Sessions that may be open at once."""
    max_tokens: int
    """Tokens of the longest context."""
    decode_steps: int = 1
    """Tokens sampled per session before the host looks at them (GPU)."""
    cache_share: float = 0.4
    """Share of the free GPU memory for the KV cache, at most."""
    pages: int | None = None
    """Pages of the KV cache on a GPU; None: as many as `cache_share` allows."""
    settings: EngineConfig = field(default_factory=EngineConfig)
    """For engines with settings of their own."""


def build_native(model: Any, renderer: Renderer, options: EngineOptions) -> Engine:
    """Build an engine over the model's own parameters: contiguous KV cache on a CPU, paged on a GPU."""
    common: dict[str, Any] = {"slots": options.slots, "stop_ids": renderer.stop_ids, "decode": renderer.decode}
    if device_of(model).type == "cpu":
        return NativeEngine(model, **common)
    runner = build_paged_runner(
        model,
        **common,
        longest=options.max_tokens,
        steps=options.decode_steps,
        share=options.cache_share,
        pages=options.pages,
    )
    return NativeEngine(model, **common, runner=runner)


def build_vllm(model: Any, renderer: Renderer, options: EngineOptions) -> Engine:
    """Build an engine on vLLM, in this process or on the servers of engine.urls."""
    return build_vllm_engine(
        model,
        renderer,
        options.settings,
        slots=options.slots,
        max_tokens=options.max_tokens,
        cache_share=options.cache_share,
    )


ENGINES: dict[str, Callable[[Any, Renderer, EngineOptions], Engine]] = {"native": build_native, "vllm": build_vllm}
