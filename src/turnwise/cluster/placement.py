"""Resources of a run's actors, and whether machines have them. Needs no Ray, so that a dry run can check it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from turnwise.config.resources import ClusterConfig
from turnwise.core.errors import UserError

Resources = Mapping[str, float]
"""Ray's names and amounts, such as {"CPU": 1, "GPU": 1}."""
WORKER_CPUS = 1.0
"""CPU cores of an environment worker: its Python code runs in one thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSlot:
    """Resources of one actor in a bundle of the placement group."""

    bundle: int
    cpus: float
    gpus: float

    @property
    def threads(self) -> int:
        return max(1, int(self.cpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Bundles of a placement group, and the slots of the actors in them."""

    bundles: tuple[dict[str, float], ...]
    engines: tuple[ActorSlot, ...]
    learners: tuple[ActorSlot, ...]
    env_workers: tuple[ActorSlot, ...] = ()


def plan_placement(settings: ClusterConfig, *, gpus_per_engine: int) -> Placement:
    """Place engines and learners, and each environment worker in a bundle of its own.

    `gpus_per_engine`: 0 on a cluster without GPUs; else a learner rank has one.
    """
    others = _place_models(settings, gpus_per_engine)
    first = len(others.bundles)
    bundles = range(first, first + settings.env_workers)
    return replace(
        others,
        bundles=(*others.bundles, *(_bundle(WORKER_CPUS, 0) for _ in bundles)),
        env_workers=tuple(ActorSlot(bundle=index, cpus=WORKER_CPUS, gpus=0) for index in bundles),
    )


def _place_models(settings: ClusterConfig, gpus_per_engine: int) -> Placement:
    """Place learner i and engine i in one bundle (colocated), or each actor in its own (disaggregated)."""
    needs = {"engine": float(gpus_per_engine), "learner": float(gpus_per_engine > 0)}
    if settings.placement == "disaggregated":
        kinds = ["engine"] * settings.engines + ["learner"] * settings.learners
        bundles = [_bundle(settings.cpus, needs[kind]) for kind in kinds]
        slots = [ActorSlot(bundle=i, cpus=settings.cpus, gpus=needs[kind]) for i, kind in enumerate(kinds)]
        return Placement(
            bundles=tuple(bundles),
            engines=tuple(slots[: settings.engines]),
            learners=tuple(slots[settings.engines :]),
        )
    shared = min(settings.engines, settings.learners)

    def slot(index: int, kind: str) -> ActorSlot:
        share = 0.5 if index < shared else 1.0
        return ActorSlot(bundle=index, cpus=share * settings.cpus, gpus=share * needs[kind])

    most = max(settings.engines, settings.learners)
    larger = "engine" if settings.engines >= settings.learners else "learner"
    return Placement(
        bundles=tuple(
            _bundle(settings.cpus, max(needs.values()) if index < shared else needs[larger]) for index in range(most)
        ),
        engines=tuple(slot(index, "engine") for index in range(settings.engines)),
        learners=tuple(slot(index, "learner") for index in range(settings.learners)),
    )


def _bundle(cpus: float, gpus: float) -> dict[str, float]:
    return {"CPU": cpus} | ({"GPU": gpus} if gpus else {})


def count_placeable(bundles: Sequence[Resources], nodes: Sequence[Resources]) -> int:
    """Return how many of the bundles fit on the nodes, the largest first, each on the first node with room."""
    free = [dict(node) for node in nodes]
    placed = 0
    for bundle in sorted(
        bundles, key=lambda resources: (resources.get("GPU", 0), resources.get("CPU", 0)), reverse=True
    ):
        for node in free:
            if all(node.get(name, 0) >= amount for name, amount in bundle.items()):
                for name, amount in bundle.items():
                    node[name] -= amount
                placed += 1
                break
    return placed


def check_capacity(settings: ClusterConfig, placement: Placement, nodes: Mapping[str, Resources]) -> None:
    """Raise UserError if the nodes (resources by address) cannot hold the bundles: what is needed and what is there."""
    placed = count_placeable(placement.bundles, list(nodes.values()))
    if placed == len(placement.bundles):
        return
    counts = Counter(_describe(bundle) for bundle in placement.bundles)
    wanted = {"engines": settings.engines, "learners": settings.learners, "env_workers": settings.env_workers}
    actors = [f"cluster.{name} {count}" for name, count in wanted.items() if count]
    fixes = ["lower them", "add machines"]
    if settings.placement == "disaggregated" and settings.engines and settings.learners:
        fixes.insert(1, "set cluster.placement colocated")
    raise UserError(
        f"{' and '.join(actors)} need {' and '.join(f'{count} x ({bundle})' for bundle, count in counts.items())}, "
        f"and there is room for {placed}: "
        f"{'; '.join(f'{name} has {_describe(node)}' for name, node in nodes.items()) or 'no machine is alive'}. "
        f"{', '.join(fixes[:-1]).capitalize()} or {fixes[-1]}."
    )


def _describe(resources: Resources) -> str:
    return ", ".join(f"{resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
