"""Rates that a prediction starts from: estimated from the GPU's data sheet, or measured and read from a file.

The estimates take a decoding step as reading the weights and the KV cache, an update as floating-point operations,
and reach the shares of the data sheet's numbers below. `turnwise train` measures the real ones.
"""

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from turnwise.cluster.simulate import Amount, EngineRates, LearnerRates, Workload
from turnwise.core.errors import UserError, read_failure
from turnwise.models.memory.estimate import GIB
from turnwise.models.memory.shapes import ModelShape
from turnwise.settings.section import NonNegative, Section
from turnwise.text.suggestions import suggest

BANDWIDTH_SHARE = 0.6
"""Share of the memory bandwidth that decoding reaches."""
COMPUTE_SHARE = 0.3
"""Share of the peak FLOP/s of passes over whole sequences: 28 % with SmolLM2-135M on an H200."""
DECODE_OVERHEAD_S = 0.002
"""Seconds per decoding step besides reading memory: 2.5 to 3.8 ms with 512 rows of SmolLM2-135M on an H200."""
ALL_REDUCE_S = 20e-6
"""Seconds of a small all-reduce between the GPUs of a tensor-parallel engine; each layer has two."""
GPUS_PER_NODE = 8
NODE_BYTES_PER_S, NETWORK_BYTES_PER_S = 200e9, 40e9
"""Bandwidth per GPU of collectives within a node (NVLink) and between nodes (400 Gbit/s per GPU)."""
TRANSFER_BYTES_PER_S = 2e9
"""Weights from the learner into the engines, through Ray's object store: 1 to 3 GB/s were measured."""
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Data sheet of a GPU: usable memory, dense bfloat16 FLOP/s, memory bandwidth."""

    name: str
    gib: float
    flops: float
    bytes_per_s: float

    @property
    def memory(self) -> int:
        return int(self.gib * GIB)


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu(name="L4", gib=22.0, flops=121e12, bytes_per_s=0.30e12),
        Gpu(name="RTX4090", gib=23.6, flops=165e12, bytes_per_s=1.01e12),
        Gpu(name="L40S", gib=44.4, flops=362e12, bytes_per_s=0.86e12),
        Gpu(name="A100-40GB", gib=39.4, flops=312e12, bytes_per_s=1.56e12),
        Gpu(name="A100", gib=79.2, flops=312e12, bytes_per_s=2.04e12),
        Gpu(name="H100", gib=79.2, flops=989e12, bytes_per_s=3.35e12),
        Gpu(name="H200", gib=139.8, flops=989e12, bytes_per_s=4.80e12),
        Gpu(name="B200", gib=178.0, flops=2250e12, bytes_per_s=8.00e12),
    )
}


def find_gpu(name: str) -> Gpu:
    by_lower = {known.lower(): gpu for known, gpu in GPUS.items()}
    if name.lower() not in by_lower:
        raise UserError(f'Unknown GPU "{name}":{suggest(name, GPUS)}. Known: {", ".join(GPUS)}.')
    return by_lower[name.lower()]


# Measured rates

PositiveNumber = Annotated[float, Field(gt=0)]


class EngineTable(Section):
    """One engine replica."""

    tokens_per_s: dict[Annotated[int, Field(ge=1)], PositiveNumber] = Field(default_factory=dict)
    """Sampled tokens per second by number of running episodes, such as {1 = 90, 64 = 3100}."""
    prefill_tokens_per_s: PositiveNumber | None = None
    """Tokens read per second."""


class LearnerTable(Section):
    seconds_per_token: PositiveNumber | None = None
    """Seconds of one rank per token of a step, scoring and update together."""
    seconds_per_step: NonNegative | None = None
    """Seconds per step that more ranks do not shorten."""
    transfer_s: NonNegative | None = None
    """Seconds until all engines have new weights."""


class EpisodesTable(Section):
    turns: PositiveNumber | None = None
    """Turns per episode."""
    prompt_tokens: NonNegative | None = None
    """Tokens before the first observation."""
    action_tokens: PositiveNumber | None = None
    """Sampled tokens per turn, median."""
    action_sigma: NonNegative = 0.0
    """Standard deviation of the logarithm of action_tokens."""
    observation_tokens: NonNegative | None = None
    """Tokens of an observation."""
    tool_s: NonNegative = 0.0
    """Seconds of the environment per turn, median."""
    tool_sigma: NonNegative = 0.0
    """Standard deviation of the logarithm of tool_s."""


class MeasuredRates(Section):
    """Contents of a rates file. What is missing is estimated."""

    engine: EngineTable = EngineTable()
    learner: LearnerTable = LearnerTable()
    episodes: EpisodesTable = EpisodesTable()


def read_rates(path: Path) -> MeasuredRates:
    try:
        return MeasuredRates.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"] if part != "[key]")
        raise UserError(f"{path}: {name}: {first['msg']}. {_describe_keys()}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{read_failure(path, error)}: give a TOML file of rates.") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None


def _describe_keys() -> str:
    tables: dict[str, type[Section]] = {"engine": EngineTable, "learner": LearnerTable, "episodes": EpisodesTable}
    return "Tables: " + "; ".join(f"[{name}] {', '.join(table.model_fields)}" for name, table in tables.items())


# Estimates


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerWork:
    """Passes of an update over the tokens of a step."""

    optimizer_steps: int
    epochs: int
    score_passes: int
    """Forward passes before the update: old and reference log-probabilities."""
    micro_tokens: int
    recompute: bool


def estimate_engine(
    shape: ModelShape, gpu: Gpu, *, tensor_parallel: int, context_tokens: float, measured: EngineTable
) -> EngineRates:
    """Return the rates of a replica on `tensor_parallel` GPUs. `context_tokens`: mean length of a running context."""
    kv_bytes = 2 * shape.layers * shape.kv_heads * shape.head_size * shape.parameter_bytes * context_tokens
    flops = tensor_parallel * gpu.flops * COMPUTE_SHARE
    bandwidth = tensor_parallel * gpu.bytes_per_s * BANDWIDTH_SHARE
    reduce_s = 2 * shape.layers * ALL_REDUCE_S if tensor_parallel > 1 else 0.0

    def decode_s(batch: int) -> float:
        read_s = (shape.parameters * shape.parameter_bytes + batch * kv_bytes) / bandwidth
        return max(read_s, 2 * shape.parameters * batch / flops) + DECODE_OVERHEAD_S + reduce_s

    return EngineRates(
        tokens_per_s=measured.tokens_per_s or {batch: batch / decode_s(batch) for batch in BATCH_SIZES},
        prefill_tokens_per_s=measured.prefill_tokens_per_s or flops / (2 * shape.parameters),
    )


def estimate_learner(
    shape: ModelShape, gpu: Gpu, work: LearnerWork, *, ranks: int, tokens: float, measured: LearnerTable
) -> LearnerRates:
    """Return the rates of `ranks` ranks that train on about `tokens` tokens per step."""
    backward = 2 if shape.adapter else 4
    passes = work.epochs * (2 + backward + 2 * work.recompute) + 2 * work.score_passes
    per_token = measured.seconds_per_token or passes * shape.parameters / (gpu.flops * COMPUTE_SHARE)
    waiting_s = max(0.0, _collectives_s(shape, work, ranks, tokens) - per_token * tokens / ranks)
    transfer_s = shape.trained * shape.parameter_bytes / TRANSFER_BYTES_PER_S
    return LearnerRates(
        seconds_per_token=per_token,
        seconds_per_step=waiting_s if measured.seconds_per_step is None else measured.seconds_per_step,
        transfer_s=transfer_s if measured.transfer_s is None else measured.transfer_s,
    )


def _collectives_s(shape: ModelShape, work: LearnerWork, ranks: int, tokens: float) -> float:
    """Return the seconds of FSDP2's collectives per step, which overlap with computation.

    Each pass gathers the weights twice and scatters the gradients once, or gathers once where it only scores.
    """
    if ranks == 1:
        return 0.0
    bandwidth = NODE_BYTES_PER_S if ranks <= GPUS_PER_NODE else NETWORK_BYTES_PER_S
    scoring = math.ceil(tokens / (ranks * work.micro_tokens))
    updates = work.optimizer_steps * math.ceil(
        tokens * work.epochs / (ranks * work.micro_tokens * work.optimizer_steps)
    )
    gathered = shape.parameters * shape.parameter_bytes
    return (work.score_passes * scoring + (2 if shape.adapter else 3) * updates) * gathered / bandwidth


def mean_tokens(workload: Workload) -> tuple[float, float]:
    """Return the means of sampled and of all tokens per episode."""
    turns = max(1.0, _mean(workload.turns))
    sampled = turns * _mean(workload.action_tokens)
    return sampled, sampled + workload.prompt_tokens + turns * _mean(workload.observation_tokens)


def _mean(amount: Amount) -> float:
    return min(amount.median * math.exp(amount.sigma**2 / 2), amount.maximum)
