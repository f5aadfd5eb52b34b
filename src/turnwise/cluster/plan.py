"""Divide GPUs between learner ranks and engine replicas: what fits, and what is predicted to be fastest."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from turnwise.cluster.gpu_memory import EngineMemory, LearnerMemory, fit_engine, fit_learner, usable
from turnwise.cluster.rates import (
    Gpu,
    LearnerWork,
    MeasuredRates,
    estimate_engine,
    estimate_learner,
    mean_tokens,
)
from turnwise.cluster.simulate import EngineRates, Layout, LearnerRates, Prediction, Workload, simulate
from turnwise.core.errors import UserError
from turnwise.engine.engines import ENGINES
from turnwise.models.memory.estimate import CUDA_CONTEXT, MemoryEstimate
from turnwise.models.memory.plan import MemoryRequest

LEARNER_SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4)
"""Shares of the GPUs that train, where engines have their own."""
TENSOR_PARALLEL = (1, 2, 4, 8)
SIMULATED = 3
"""Divisions that are simulated per staleness: those with the lowest bound on their step time."""
MAX_GPUS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """A training job to place."""

    estimate: MemoryEstimate
    request: MemoryRequest
    workload: Workload
    in_flight: int
    max_staleness: int
    """Bound of the asynchronous layouts to try."""
    optimizer_steps: int
    epochs: int
    score_passes: int
    rates: MeasuredRates
    splits_engines: bool
    """Whether the engine can split a model over several GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """A division of the GPUs that fits their memory."""

    layout: Layout
    tensor_parallel: int
    learner: LearnerMemory
    engine: EngineMemory

    @property
    def gpus(self) -> int:
        engines = 0 if self.layout.colocated else self.layout.engines * self.tensor_parallel
        return self.layout.learners + engines


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedDivision:
    division: Division
    learner_rates: LearnerRates
    prediction: Prediction

    @property
    def gpu_idle(self) -> float:
        """Share of the GPU time in which neither a turn is generated nor an update runs."""
        layout, prediction = self.division.layout, self.prediction
        if layout.colocated:
            return max(0.0, prediction.engine_idle + prediction.learner_idle - 1)
        engines = layout.engines * self.division.tensor_parallel
        return (engines * prediction.engine_idle + layout.learners * prediction.learner_idle) / (
            engines + layout.learners
        )


def plan_cluster(job: TrainingJob, gpu: Gpu, gpus: int, *, steps: int = 4, seed: int = 0) -> list[PredictedDivision]:
    """Return the simulated divisions, the fastest first. Raises UserError if none fits."""
    if gpus < 2:
        raise UserError(
            f"gpus {gpus}: a cluster has at least 2 GPUs. `turnwise doctor --plan --model NAME` plans one GPU."
        )
    divisions = list(find_divisions(job, gpu, gpus))
    if not divisions:
        raise UserError(_describe_misfit(job, gpu, gpus))
    chosen = []
    for staleness in sorted({division.layout.max_staleness for division in divisions}):
        alternatives = [division for division in divisions if division.layout.max_staleness == staleness]
        chosen += sorted(alternatives, key=lambda division: bound_step_s(job, gpu, division))[:SIMULATED]
    predicted = [predict(job, gpu, division, steps=steps, seed=seed) for division in chosen]
    return sorted(predicted, key=lambda plan: plan.prediction.step_s)


def find_divisions(job: TrainingJob, gpu: Gpu, gpus: int) -> Iterator[Division]:
    """Yield the divisions that fit: colocated, and shares of the GPUs for learners, synchronous and asynchronous.

    A synchronous division with separate GPUs, half of which always wait, is yielded only if no colocated one fits.
    """
    episodes = job.workload.episodes
    colocated = fit_division(job, gpu, learners=min(gpus, episodes), engines=min(gpus, episodes), tensor_parallel=None)
    if colocated is not None:
        yield colocated
    stalenesses = [job.max_staleness] if colocated is not None else sorted({0, job.max_staleness})
    for tensor_parallel in TENSOR_PARALLEL if job.splits_engines else (1,):
        counts = {(gpus - max(1, round(share * gpus))) // tensor_parallel for share in LEARNER_SHARES}
        for engines in sorted(count for count in counts if 1 <= count <= episodes):
            learners = min(gpus - engines * tensor_parallel, episodes)
            division = fit_division(job, gpu, learners=learners, engines=engines, tensor_parallel=tensor_parallel)
            if division is None:
                continue
            for staleness in stalenesses:
                yield replace(division, layout=replace(division.layout, max_staleness=staleness))


def fit_division(
    job: TrainingJob, gpu: Gpu, *, learners: int, engines: int, tensor_parallel: int | None
) -> Division | None:
    """Return a synchronous division if it fits. `tensor_parallel` None: colocated, each engine on one GPU."""
    colocated, split = tensor_parallel is None, tensor_parallel or 1
    available = usable(gpu.memory)
    kept_by_engine = CUDA_CONTEXT + job.estimate.parameters if colocated else 0
    learner = fit_learner(job.estimate, job.request, learners, available - kept_by_engine)
    if learner is None:
        return None
    kept_by_learner = sum(item.rollout for item in learner.items) if colocated else 0
    engine = fit_engine(
        job.estimate,
        job.request,
        tensor_parallel=split,
        slots=math.ceil(min(job.in_flight, job.workload.episodes * (job.max_staleness + 1)) / engines),
        episode_tokens=min(mean_tokens(job.workload)[1], job.request.max_context),
        available=available - kept_by_learner,
    )
    if engine is None:
        return None
    layout = Layout(
        engines=engines,
        learners=learners,
        colocated=colocated,
        slots=engine.slots,
        in_flight=job.in_flight,
        max_staleness=0,
    )
    return Division(layout=layout, tensor_parallel=split, learner=learner, engine=engine)


def division_rates(job: TrainingJob, gpu: Gpu, division: Division) -> tuple[EngineRates, LearnerRates]:
    shape, (_, episode_tokens) = job.estimate.shape, mean_tokens(job.workload)
    work = LearnerWork(
        optimizer_steps=job.optimizer_steps,
        epochs=job.epochs,
        score_passes=job.score_passes,
        micro_tokens=division.learner.micro_tokens,
        recompute=division.learner.recompute,
    )
    engine = estimate_engine(
        shape,
        gpu,
        tensor_parallel=division.tensor_parallel,
        context_tokens=episode_tokens / 2,
        measured=job.rates.engine,
    )
    learner = estimate_learner(
        shape,
        gpu,
        work,
        ranks=division.layout.learners,
        tokens=job.workload.episodes * episode_tokens,
        measured=job.rates.learner,
    )
    return engine, learner


def bound_step_s(job: TrainingJob, gpu: Gpu, division: Division) -> float:
    """Return the seconds that a step takes if engines are never idle and always have all slots in use."""
    engine, learner = division_rates(job, gpu, division)
    layout, (sampled, tokens) = division.layout, mean_tokens(job.workload)
    running = max(1, min(layout.slots, math.ceil(job.workload.episodes * (1 + layout.max_staleness) / layout.engines)))
    per_episode = sampled / engine.total(running) + (tokens - sampled) / engine.prefill_tokens_per_s
    generate_s = job.workload.episodes / layout.engines * per_episode
    update_s = learner.seconds_per_step + job.workload.episodes * tokens * learner.seconds_per_token / layout.learners
    overlap = layout.max_staleness > 0 and not layout.colocated
    return learner.transfer_s + (max(generate_s, update_s) if overlap else generate_s + update_s)


def predict(job: TrainingJob, gpu: Gpu, division: Division, *, steps: int, seed: int) -> PredictedDivision:
    engine, learner = division_rates(job, gpu, division)
    prediction = simulate(job.workload, engine, learner, division.layout, steps=steps, seed=seed)
    return PredictedDivision(division=division, learner_rates=learner, prediction=prediction)


def _describe_misfit(job: TrainingJob, gpu: Gpu, gpus: int) -> str:
    """Return what is missing, and what would fit."""
    enough = gpus
    while enough <= MAX_GPUS and not any(find_divisions(job, gpu, enough)):
        enough *= 2
    shape = job.estimate.shape
    size = f"{shape.parameters / 1e9:.3g}B parameters"
    fixes = [f"use {enough} GPUs"] if enough <= MAX_GPUS else []
    if not job.splits_engines:
        kinds = " or ".join(name for name, kind in ENGINES.items() if kind.splits_models)
        fixes.append(f"split engines over GPUs (engine {kinds})")
    if not shape.adapter:
        fixes.append("train an adapter (lora.rank 16)")
    fixes += ["choose a GPU with more memory", "lower rollout.max_tokens", "choose a smaller model"]
    return (
        f"A model with {size} does not fit {gpus} x {gpu.name} with {gpu.gib:g} GiB, learners and engines together: "
        f"{', '.join(fixes[:-1])} or {fixes[-1]}."
    )
