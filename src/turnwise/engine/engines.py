"""The engines by name.

An engine generates tokens for sessions; see `Engine` in `core/protocols.py`. Its code is imported when it is built or
checked, so that settings can be read without torch.
"""

from typing import TYPE_CHECKING, Any, ClassVar

from turnwise.core.protocols import Engine
from turnwise.engine.options import EngineOptions
from turnwise.engine.settings import EngineSettings
from turnwise.engine.vllm.settings import VllmSettings
from turnwise.settings.choice import choices

if TYPE_CHECKING:
    from turnwise.render.renderer import Renderer


class Native(EngineSettings, kind="native"):
    """turnwise's own engine. It shares the learner's weights."""

    shares_weights: ClassVar[bool] = True

    def build(self, model: Any, renderer: "Renderer", options: EngineOptions) -> Engine:
        from turnwise.engine.native.build import build_native

        return build_native(model, renderer, options, self.gpu_memory_utilization)

    @property
    def reads_images(self) -> bool:
        return True


class Vllm(VllmSettings, kind="vllm"):
    """vLLM, in this process or on servers, with a copy of the weights."""

    def build(self, model: Any, renderer: "Renderer", options: EngineOptions) -> Engine:
        from turnwise.engine.vllm.build import build_vllm

        return build_vllm(model, renderer, options, self)

    def check(self) -> None:
        if not self.urls:
            from turnwise.engine.vllm.installation import check_installation

            check_installation()


ENGINES: dict[str, type[EngineSettings]] = choices(Native, Vllm)
