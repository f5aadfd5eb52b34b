"""Build the native engine."""

from typing import Any

from turnwise.engine.native.engine import NativeEngine
from turnwise.engine.options import EngineOptions
from turnwise.engine.paged.runner import build_paged_runner
from turnwise.models.loading.load import device_of
from turnwise.render.renderer import Renderer


def build_native(model: Any, renderer: Renderer, options: EngineOptions, cache_share: float) -> NativeEngine:
    """Build an engine over the model's own parameters: contiguous KV cache on a CPU, paged on a GPU.

    `cache_share`: largest share of the free memory of a GPU for the KV cache.
    """
    common: dict[str, Any] = {"slots": options.slots, "stop_ids": renderer.stop_ids, "decode": renderer.decode}
    if device_of(model).type == "cpu":
        return NativeEngine(model, **common, grammars=renderer.grammars)
    runner = build_paged_runner(
        model,
        **common,
        longest=options.max_tokens,
        steps=options.decode_steps,
        share=cache_share,
        pages=options.pages,
    )
    return NativeEngine(model, **common, runner=runner, grammars=renderer.grammars)
