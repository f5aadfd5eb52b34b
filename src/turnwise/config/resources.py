"""Settings of where a run computes: threads and memory, the cluster."""

from typing import Annotated, Literal

from pydantic import Field

from turnwise.settings.needs import (
    IN_TURN,
    LOCAL_ENGINE,
    LOCAL_EPISODES,
    LOCAL_LEARNER,
    OWN_GPUS,
    Lack,
    Need,
)
from turnwise.settings.section import Section


class SystemConfig(Section):
    """CPU threads, GPU memory and compilation."""

    threads: Annotated[int, Field(ge=0)] = 0
    """CPU threads; 0 uses one per core, or the limit of the system if lower. Affects the exact results."""
    compile: bool = True
    """GPU: compile the model's layers; takes half a minute the first time and doubles the speed."""
    keep_cache: Literal["auto", "on", "off"] = "auto"
    """GPU: keep the KV cache during updates; off: free it, and capture CUDA graphs again after each."""

    def needs(self) -> list[Need]:
        frees = Need(IN_TURN, "system.keep_cache off frees the KV cache for updates", "set system.keep_cache to on")
        return [frees] if self.keep_cache == "off" else []


class ClusterConfig(Section):
    """Engine replicas, environment workers and learner ranks on a Ray cluster."""

    engines: Annotated[int, Field(ge=0)] = 0
    """Engine replicas, each in a Ray actor with a copy of the weights; 0 runs one engine in this process."""
    learners: Annotated[int, Field(ge=0)] = 0
    """Learner ranks, each in a Ray actor with a shard of the weights; 0 runs one learner in this process."""
    env_workers: Annotated[int, Field(ge=0)] = 0
    """Environment workers, each in a Ray actor with one CPU core; 0 runs environments beside their engine."""
    placement: Literal["colocated", "disaggregated"] = "colocated"
    """colocated: learner i and engine i share a GPU; disaggregated: a learner has one, an engine tensor_parallel."""
    cpus: Annotated[float, Field(gt=0)] = 1.0
    """CPU cores and threads per engine replica and learner rank, or per pair of colocated ones."""
    address: str | None = None
    """Address of a running Ray cluster; none uses RAY_ADDRESS, or starts a cluster on this machine for the run."""

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
        if self.placement == "colocated" and self.engines and self.learners:
            one, fix = "puts an engine and a learner on one GPU", "set cluster.placement disaggregated"
            lacks[OWN_GPUS] = Lack("cluster.placement colocated", one, fix)
        return lacks

    @property
    def is_used(self) -> bool:
        return bool(self.engines or self.learners or self.env_workers)
