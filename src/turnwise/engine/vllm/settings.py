"""Settings of the vLLM engine."""

from typing import ClassVar

from turnwise.engine.settings import EngineSettings, MemoryShare
from turnwise.settings.needs import OWN_GPUS, TWO_POLICIES, Lack, Need
from turnwise.settings.section import Idle, Positive


class VllmSettings(EngineSettings):
    """vLLM, in this process or on servers, with a copy of the weights."""

    splits_models: ClassVar[bool] = True
    urls: tuple[str, ...] = ()
    """Addresses of `vllm serve` servers, such as http://localhost:8000; default: vLLM runs in this process."""
    weights_folder: str | None = None
    """Folder through which new weights reach the engine, seen by every server; none uses shared memory."""
    tensor_parallel: Positive = 1
    """Number of GPUs that the model is split over."""
    gpu_memory_utilization: MemoryShare = 0.4
    """Share of the GPU's memory for vLLM's weights and KV cache; on a CPU, of its free memory for the cache."""

    @property
    def reads_images(self) -> bool:
        return not self.urls

    @property
    def gpu_share(self) -> float:
        return 0.0 if self.urls else self.gpu_memory_utilization  # servers have GPUs of their own

    @property
    def gpus(self) -> int:
        return self.tensor_parallel

    def idle(self) -> Idle:
        of_servers = ("tensor_parallel", "gpu_memory_utilization")
        return dict.fromkeys(of_servers, ("engine.urls", "start the servers with it")) if self.urls else {}

    def needs(self) -> list[Need]:
        why = f"engine.tensor_parallel {self.tensor_parallel} splits the model over as many GPUs"
        return [Need(OWN_GPUS, why, "set engine.tensor_parallel to 1")] if self.tensor_parallel > 1 else []

    def lacks(self) -> dict[str, Lack]:
        one_set = Lack("engine.urls", "names servers that hold one", "remove engine.urls")
        return {TWO_POLICIES: one_set} if self.urls else {}
