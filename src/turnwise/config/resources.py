"""Settings of where a run computes: threads and memory, the engine, the cluster."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from turnwise.settings.needs import (
    IN_TURN,
    LOCAL_ENGINE,
    LOCAL_EPISODES,
    LOCAL_LEARNER,
    TWO_POLICIES,
    Lack,
    Need,
)
from turnwise.settings.section import Idle, Positive, Section


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

    def needs(self) -> list[Need]:
        frees = Need(IN_TURN, "system.keep_cache off frees the KV cache for updates", "set system.keep_cache to on")
        return [frees] if self.keep_cache == "off" else []


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

    def idle(self) -> Idle:
        of_servers = ("tensor_parallel", "gpu_memory_utilization")
        return dict.fromkeys(of_servers, ("engine.urls", "start the servers with it")) if self.urls else {}

    def lacks(self) -> dict[str, Lack]:
        one_set = Lack("engine.urls", "names servers that hold one", "leave out engine.urls")
        return {TWO_POLICIES: one_set} if self.urls else {}


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

    @model_validator(mode="after")
    def _check_shared_gpus(self) -> "ClusterConfig":
        shares = self.placement == "colocated" and self.engines > 0 and self.learners > 0
        if shares and max(self.gpus_per_engine or 0, self.gpus_per_learner or 0) > 1:
            raise ValueError(
                "cluster.placement colocated puts an engine and a learner on one GPU, and cluster.gpus_per_engine or "
                "cluster.gpus_per_learner is above 1. Set cluster.placement disaggregated."
            )
        return self

    def lacks(self) -> dict[str, Lack]:
        lacks = {}
        if self.engines:
            name = f"cluster.engines {self.engines}"
            lacks[LOCAL_ENGINE] = Lack(name, "generates in actors", "set cluster.engines to 0")
        if self.engines or self.env_workers:
            name = f"cluster.engines {self.engines}" if self.engines else f"cluster.env_workers {self.env_workers}"
            fix = "set cluster.engines and cluster.env_workers to 0"
            lacks[LOCAL_EPISODES] = Lack(name, "plays episodes in actors", fix)
        if self.learners:
            name = f"cluster.learners {self.learners}"
            lacks[LOCAL_LEARNER] = Lack(name, "trains in actors", "set cluster.learners to 0")
        return lacks

    @property
    def is_used(self) -> bool:
        return bool(self.engines or self.learners or self.env_workers)
