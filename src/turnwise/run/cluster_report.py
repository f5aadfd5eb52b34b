"""`turnwise cluster plan`: what goes where on a cluster that need not be present, memory, and predicted step time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turnwise.cluster.gpu_memory import peak
from turnwise.cluster.placement import WORKER_CPUS, plan_placement
from turnwise.cluster.plan import Division, PredictedDivision, TrainingJob, fit_division, plan_cluster
from turnwise.cluster.rates import GPUS, EpisodesTable, Gpu, MeasuredRates, find_gpu, mean_tokens, read_rates
from turnwise.cluster.simulate import Amount, Workload
from turnwise.config.resources import ClusterConfig
from turnwise.config.schema import Config
from turnwise.envs.registry import load_spec
from turnwise.models.loading.load import DTYPES
from turnwise.models.memory.estimate import MemoryEstimate
from turnwise.models.memory.shapes import config_shape, load_config
from turnwise.run.memory_report import format_gib
from turnwise.run.resources import memory_request
from turnwise.text.command_line import spell_command

DEFAULT_STALENESS = 1
"""Staleness of the asynchronous layouts if the recipe is synchronous."""
UTILIZATION = 0.9
"""Share of its GPU that a vLLM engine may use where it does not share it."""
DEFAULT_TURNS = 10
"""Turns per episode of an environment that does not limit them."""
SLOW_COLLECTIVES = 0.2
"""Share of a step from which waiting for the ranks' collectives is worth a note."""
Row = Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    headers: Row
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReport:
    title: str
    roles: Table
    """Processes and the GPUs that they get."""
    memory: Table
    """GiB per GPU."""
    choices: Table
    """Divisions that were simulated, the fastest first."""
    notes: Sequence[str]
    command: str


def _format_seconds(seconds: float) -> str:
    """Return seconds with a decimal; short times with two digits, so that none is 0.0."""
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds:.2g} s"


def report_cluster(
    recipe: str,
    config: Config,
    overrides: Sequence[tuple[str, str]],
    *,
    gpus: int,
    gpu_name: str,
    rates_file: Path | None = None,
) -> ClusterReport:
    """Plan the recipe."""
    gpu = find_gpu(gpu_name)
    rates = MeasuredRates() if rates_file is None else read_rates(rates_file)
    job = build_job(config, rates)
    choices = plan_cluster(job, gpu, gpus, seed=config.seed)
    best = choices[0]
    shape = job.estimate.shape
    trained = "all" if not shape.adapter else f"{shape.trained / 1e6:,.0f}M"
    return ClusterReport(
        title=f"{recipe} with {config.model.name} ({shape.parameters / 1e9:.3g}B parameters, {trained} trained) "
        f"on {gpus} x {gpu.name}",
        roles=_roles(best, gpu, gpus, config.cluster),
        memory=_memory(best, gpu),
        choices=_choices(choices),
        notes=_notes(best, job, config, rates_file),
        command=_command(recipe, config, overrides, best),
    )


def report_memory(config: Config) -> Table:
    """Return the memory of each actor of a run with these cluster settings, for the GPUs that are known."""
    settings, job = config.cluster, build_job(config, MeasuredRates())
    shared = settings.placement == "colocated"
    parts = ("rolling out", "updating") if shared else ("learner rank", "engine")
    rows = []
    for gpu in GPUS.values():
        division = fit_division(
            job,
            gpu,
            learners=settings.learners,
            engines=settings.engines,
            tensor_parallel=None if shared else config.engine.gpus,
        )
        sizes = ("does not fit", "", "") if division is None else _division_sizes(division)
        rows.append((gpu.name, f"{gpu.gib:g}", *sizes))
    return Table(headers=("GPU", "GiB", *(f"{part}, GiB" for part in parts), "tokens per pass"), rows=rows)


def _division_sizes(division: Division) -> tuple[str, str, str]:
    learner, engine = division.learner.items, division.engine.items
    if division.layout.colocated:
        both = (*learner, *engine)
        first, second = sum(item.rollout for item in both), sum(item.update for item in both)
    else:
        first, second = peak(learner), sum(item.rollout for item in engine)
    activations = "activations recomputed" if division.learner.recompute else "activations kept"
    return format_gib(first), format_gib(second), f"{division.learner.micro_tokens:,}, {activations}"


def build_job(config: Config, rates: MeasuredRates) -> TrainingJob:
    lora, rollout = config.lora, config.rollout
    parameter_bytes = 2 if config.model.dtype == "auto" else DTYPES[config.model.dtype].itemsize
    shape = config_shape(
        load_config(config.model.name),
        rank=lora.rank,
        targets=lora.targets,
        parameter_bytes=parameter_bytes,
    )
    request = memory_request(config)
    trajectories = rollout.groups * rollout.group_size
    return TrainingJob(
        estimate=MemoryEstimate(shape=shape, compiled=config.system.compile),
        request=request,
        workload=build_workload(config, rates.episodes),
        in_flight=rollout.in_flight,
        max_staleness=rollout.max_staleness or DEFAULT_STALENESS,
        optimizer_steps=config.train.epochs * math.ceil(trajectories / config.train.mini_batch),
        epochs=config.train.epochs,
        score_passes=1 + request.reference,
        rates=rates,
        splits_engines=config.engine.splits_models,
    )


def build_workload(config: Config, measured: EpisodesTable) -> Workload:
    """Return the episodes of a step: measured, or assumed from the settings' limits.

    Assumed: all turns are used, with half of rollout.max_new_tokens each, and prompt and observations fill half of the
    rest of rollout.max_tokens, in equal parts.
    """
    rollout = config.rollout
    turns = measured.turns or _max_turns(config)
    action = measured.action_tokens or rollout.max_new_tokens / 2
    read = max(0.0, rollout.max_tokens - turns * action) / 2 / (turns + 1)
    return Workload(
        groups=rollout.groups,
        group_size=rollout.group_size,
        turns=Amount(median=turns),
        prompt_tokens=read if measured.prompt_tokens is None else measured.prompt_tokens,
        action_tokens=Amount(median=action, sigma=measured.action_sigma, maximum=rollout.max_new_tokens),
        observation_tokens=Amount(median=read if measured.observation_tokens is None else measured.observation_tokens),
        tool_s=Amount(median=measured.tool_s, sigma=measured.tool_sigma, maximum=rollout.timeout_s),
    )


def _max_turns(config: Config) -> int:
    params = load_spec(config.env.kind).check_params(config.env.params)
    fit = max(1, config.rollout.max_tokens // config.rollout.max_new_tokens)
    return min(int(params.get("max_turns", DEFAULT_TURNS)), fit)


def _roles(best: PredictedDivision, gpu: Gpu, gpus: int, settings: ClusterConfig) -> Table:
    layout, split = best.division.layout, best.division.tensor_parallel
    learner = f"{layout.learners} ranks, the model sharded over them (FSDP2)" if layout.learners > 1 else "1 rank"
    engine = f"{layout.engines} replicas" if layout.engines > 1 else "1 replica"
    if split > 1:
        engine += f", each split over {split} GPUs"
    rows = [("learner", learner, str(layout.learners)), ("engines", engine, str(layout.engines * split))]
    if layout.colocated:
        where = f"{layout.learners} x {gpu.name}, shared: engines free their KV cache during updates"
        rows = [(name, how, where) for name, how, _ in rows]
    else:
        rows = [(name, how, f"{count} x {gpu.name}") for name, how, count in rows]
    workers = settings.env_workers
    how = f"{workers} worker{'s' * (workers != 1)}" if workers else "beside their engines"
    rows.append(("environments", how, f"{workers * WORKER_CPUS:g} CPU cores" if workers else ""))
    if best.division.gpus < gpus:
        rows.append(("unused", "", f"{gpus - best.division.gpus} x {gpu.name}"))
    return Table(headers=("what", "how", "where"), rows=rows)


def _memory(best: PredictedDivision, gpu: Gpu) -> Table:
    learner, engine = best.division.learner.items, best.division.engine.items
    if best.division.layout.colocated:
        headers = ("GiB per GPU", "rolling out", "updating")
        sizes = [(item.name, item.rollout, item.update) for item in (*learner, *engine)]
    else:
        headers = ("GiB per GPU", "learner", "engine")
        sizes = [(item.name, item.update, 0) for item in learner] + [(item.name, 0, item.rollout) for item in engine]
    sizes.append(("total", sum(first for _, first, _ in sizes), sum(second for _, _, second in sizes)))
    sizes.append(("available", gpu.memory, gpu.memory))
    rows = [(name, format_gib(first), format_gib(second)) for name, first, second in sizes if first or second]
    return Table(headers=headers, rows=rows)


def _choices(choices: Sequence[PredictedDivision]) -> Table:
    rows = []
    for choice in choices:
        layout, prediction = choice.division.layout, choice.prediction
        split = f" x {choice.division.tensor_parallel}" if choice.division.tensor_parallel > 1 else ""
        rows.append(
            (
                "shared" if layout.colocated else "separate",
                str(layout.learners),
                f"{layout.engines}{split}",
                str(layout.max_staleness),
                _format_seconds(prediction.step_s),
                _percent(choice.gpu_idle),
                _percent(prediction.engine_idle),
                _percent(prediction.learner_idle),
                f"{prediction.staleness:.2f}",
            )
        )
    return Table(
        headers=(
            "GPUs",
            "learners",
            "engines",
            "max_staleness",
            "predicted step",
            "GPUs idle",
            "engines idle",
            "learner idle",
            "mean staleness",
        ),
        rows=rows,
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _notes(best: PredictedDivision, job: TrainingJob, config: Config, rates_file: Path | None) -> list[str]:
    work, learner = job.workload, best.division.learner
    _, tokens = mean_tokens(work)
    tool = f"{work.tool_s.median:g} s per tool call" if work.tool_s.median else "tools without delay"
    activations = "activations recomputed" if learner.recompute else "activations kept"
    lines = [
        f"Episodes per step: {work.groups} x {work.group_size}, each {work.turns.median:g} turns of "
        f"{work.action_tokens.median:g} sampled tokens, {tokens:,.0f} tokens in all, {tool}.",
        f"Learner: {learner.micro_tokens:,} tokens per pass, {activations}. "
        f"Engines: up to {best.division.layout.slots} running episodes per replica.",
        f"CPU cores of all actors: {_cpu_cores(best, config.cluster):g}.",
        _describe_rates(job.rates, rates_file),
    ]
    if best.learner_rates.seconds_per_step > SLOW_COLLECTIVES * best.prediction.step_s:
        lines.append(
            f"Ranks wait {best.learner_rates.seconds_per_step:.1f} s per step to exchange weights and gradients: "
            f"train.mini_batch {config.train.mini_batch} makes {job.optimizer_steps} optimizer steps of a training "
            "step; a larger one makes fewer."
        )
    return lines


def _cpu_cores(best: PredictedDivision, settings: ClusterConfig) -> float:
    """Return the CPU cores of all actors."""
    layout = best.division.layout
    chosen = {
        "engines": layout.engines,
        "learners": layout.learners,
        "placement": "colocated" if layout.colocated else "disaggregated",
    }
    return sum(
        bundle["CPU"] for bundle in plan_placement(settings.model_copy(update=chosen), gpus_per_engine=1).bundles
    )


def _describe_rates(rates: MeasuredRates, rates_file: Path | None) -> str:
    known = {
        "engine": bool(rates.engine.tokens_per_s),
        "learner": rates.learner.seconds_per_token is not None,
        "episodes": rates.episodes.turns is not None and rates.episodes.action_tokens is not None,
    }
    estimated = [name for name, measured in known.items() if not measured]
    if not estimated:
        return f"Rates are from {rates_file}."
    hint = (
        "Measure them and pass them in a file (`turnwise cluster plan --rates FILE.toml`)."
        if rates_file is None
        else f"The others are from {rates_file}."
    )
    return f"Rates of {', '.join(estimated)} are estimates from data sheets and limits, not measurements. {hint}"


def _command(recipe: str, config: Config, overrides: Sequence[tuple[str, str]], best: PredictedDivision) -> str:
    layout, split = best.division.layout, best.division.tensor_parallel
    settings: dict[str, object] = {
        "cluster.learners": layout.learners,
        "cluster.engines": layout.engines,
        "cluster.placement": "colocated" if layout.colocated else "disaggregated",
        "rollout.max_staleness": layout.max_staleness,
        "train.micro_tokens": best.division.learner.micro_tokens,
        "train.recompute": "on" if best.division.learner.recompute else "off",
    }
    if split > 1:
        settings["engine.tensor_parallel"] = split
    if config.engine.gpu_share is not None and not layout.colocated:
        settings["engine.gpu_memory_utilization"] = UTILIZATION
    typed = [(key, value) for key, value in overrides if key.replace("-", "_") not in settings]
    words = [word for key, value in [*typed, *settings.items()] for word in (f"--{key}", value)]
    return spell_command("train", recipe, *words)
