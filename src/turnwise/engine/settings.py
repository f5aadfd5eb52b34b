"""Base class of the engines' settings."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from turnwise.core.protocols import Engine
from turnwise.engine.options import EngineOptions
from turnwise.settings.choice import Choice

if TYPE_CHECKING:
    from turnwise.render.renderer import Renderer

MemoryShare = Annotated[float, Field(gt=0, le=1)]


class EngineSettings(Choice):
    """An engine and its settings. Code outside `engine/` uses these members and never compares the name."""

    shares_weights: ClassVar[bool] = False
    """Samples from the parameters that it is built with, without a copy. Asynchronous training builds it with a copy;
    the log-probabilities of other engines are corrected by default."""
    splits_models: ClassVar[bool] = False
    """Can split a model over several GPUs."""
    gpu_memory_utilization: MemoryShare = 0.4
    """GPU: largest share of the free memory for the KV cache."""

    @abstractmethod
    def build(self, model: Any, renderer: "Renderer", options: EngineOptions) -> Engine:
        """Return the engine of a model. The model has turnwise's attention."""

    def check(self) -> None:
        """Raise UserError if the engine cannot run here. Called before a model is loaded."""

    @property
    def reads_images(self) -> bool:
        """A context may contain images, as ids below 0 (`core/images.py`)."""
        return False

    @property
    def gpu_share(self) -> float | None:
        """Share of the GPU's memory that it takes, weights and KV cache together. None: the memory plan has a KV cache
        within gpu_memory_utilization for it, and a copy of the weights unless it shares them."""
        return None

    @property
    def gpus(self) -> int:
        """GPUs of a replica on a cluster with GPUs."""
        return 1
