"""Settings of where a run computes: threads and memory, the engine, the cluster."""

from typing import Annotated, Literal

from pydantic import Field

from turnwise.core.section import Positive, Section


class SystemConfig(Section):
    """CPU threads, GPU memory and compilation."""

    threads: Annotated[int, Field(ge=0)] = 0
    """CPU threads; 0 uses one per core, or the limit of the system if lower. Affects the exact results."""
    compile: bool = True
    """GPU: compile the model's layers; takes half a minute the first time and doubles the speed."""
    cache_share: Annotated[float, Field(gt=0, le=1)] = 0.4
    """GPU: maximum share of free memory for the KV cache."""
    decode_steps: Annotated[int, Field(ge=1, le=16)] = 4
    """GPU: tokens sampled per episode before the host reads them."""
    keep_cache: Literal["auto", "on", "off"] = "auto"
    """GPU: keep the KV cache during updates; off: free it, and capture CUDA graphs again after each."""


class EngineConfig(Section):
    """Engine that generates the rollouts."""

    kind: str = "native"
    """Engine that generates rollouts. native shares the learner's weights; others have a copy of them."""
    urls: tuple[str, ...] = ()
    """vllm: addresses of `vllm serve` servers, such as http://localhost:8000; default: vLLM runs in this process."""
    weights_folder: str | None = None
    """vllm: folder through which new weights reach the engine, seen by every server; none uses shared memory."""
    tensor_parallel: Positive = 1
    """vllm: number of GPUs that the model is split over."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.4
    """vllm: share of the GPU's memory for vLLM's weights and KV cache; on a CPU, of its free memory for the cache."""


class ClusterConfig(Section):
    """Engine replicas, environment workers and learner ranks on a Ray cluster."""

    engines: Annotated[int, Field(ge=0)] = 0
    """Engine replicas, each in a Ray actor with a copy of the weights; 0 runs one engine in this process."""
    learners: Annotated[int, Field(ge=0)] = 0
    """Learner ranks, each in a Ray actor with a shard of the weights; 0 runs one learner in this process."""
    env_workers: Annotated[int, Field(ge=0)] = 0
    """Environment workers, each in a Ray actor with one CPU core; 0 runs environments beside their engine."""
    placement: Literal["colocated", "disaggregated"] = "colocated"
    """colocated: learner i and engine i share their CPUs and GPUs; disaggregated: each has its own."""
    cpus: Annotated[float, Field(gt=0)] = 1.0
    """CPU cores per engine replica and learner rank, or per pair of colocated ones."""
    gpus_per_engine: Annotated[int, Field(ge=0)] | None = None
    """GPUs per engine replica; none uses 1 if the cluster has any."""
    gpus_per_learner: Annotated[int, Field(ge=0)] | None = None
    """GPUs per learner rank; none uses 1 if the cluster has any."""
    address: str | None = None
    """Address of a running Ray cluster; none uses RAY_ADDRESS, or starts a cluster on this machine for the run."""
    wait_s: Annotated[float, Field(gt=0)] = 60.0
    """Seconds to wait until the cluster has room for all actors."""

    @property
    def is_used(self) -> bool:
        return bool(self.engines or self.learners or self.env_workers)
