"""The engines by name, and what the rest of turnwise has to know about each.

An engine generates tokens for sessions; see `Engine` in `core/protocols.py`. Its code is imported when it is built or
checked, so that settings can be read without torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnwise.config.resources import EngineConfig
from turnwise.core.errors import UserError
from turnwise.core.protocols import Engine
from turnwise.engine.options import EngineOptions
from turnwise.text.suggestions import suggest

if TYPE_CHECKING:
    from turnwise.render.renderer import Renderer


def _check_nothing(settings: EngineConfig) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """An engine that engine.kind can name. Code outside `engine/` uses these fields and never compares the name."""

    build: "Callable[[Any, Renderer, EngineOptions], Engine]"
    """Return the engine of a model. The model has turnwise's attention."""
    check: Callable[[EngineConfig], None] = _check_nothing
    """Raise UserError if the engine cannot run here. Called before a model is loaded."""
    shares_weights: bool = False
    """Whether it samples from the parameters that it is built with, without a copy. Asynchronous training builds it
    with a copy; the log-probabilities of other engines are corrected by default."""
    reads_images: Callable[[EngineConfig], bool]
    """Return whether a context may contain images, as ids below 0 (`core/images.py`)."""
    reads: tuple[str, ...] = ()
    """Names of the settings, of sections `engine` and `system`, that change what it does. An override that is read by
    other engines only is an error."""
    gpu_share: Callable[[EngineConfig], float] | None = None
    """Share of the GPU's memory that it takes, weights and KV cache together. None: the memory plan has a KV cache
    within system.cache_share for it, and a copy of the weights unless it shares them."""

    @property
    def splits_models(self) -> bool:
        """Whether it can split a model over several GPUs."""
        return "engine.tensor_parallel" in self.reads


class EngineKinds(dict[str, EngineKind]):
    def __missing__(self, name: str) -> EngineKind:
        raise UserError(f'Unknown engine.kind "{name}":{suggest(name, self)}')


def _build_native(model: Any, renderer: "Renderer", options: EngineOptions) -> Engine:
    from turnwise.engine.native.build import build_native

    return build_native(model, renderer, options)


def _build_vllm(model: Any, renderer: "Renderer", options: EngineOptions) -> Engine:
    from turnwise.engine.vllm.build import build_vllm

    return build_vllm(model, renderer, options)


def _check_vllm(settings: EngineConfig) -> None:
    from turnwise.engine.vllm.build import check_vllm

    check_vllm(settings)


def _vllm_gpu_share(settings: EngineConfig) -> float:
    """Return 0 for servers, which have GPUs of their own."""
    return 0.0 if settings.urls else settings.gpu_memory_utilization


ENGINES = EngineKinds(
    native=EngineKind(
        build=_build_native,
        shares_weights=True,
        reads_images=lambda settings: True,
        reads=("system.cache_share", "system.decode_steps"),
    ),
    vllm=EngineKind(
        build=_build_vllm,
        check=_check_vllm,
        reads_images=lambda settings: not settings.urls,
        reads=(
            "engine.urls",
            "engine.weights_folder",
            "engine.tensor_parallel",
            "engine.gpu_memory_utilization",
        ),
        gpu_share=_vllm_gpu_share,
    ),
)
