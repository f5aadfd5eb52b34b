"""`turnwise doctor --plan`: memory plan for a model and a GPU that need not be present."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from turnwise.config.load import build
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.models.loading.load import DTYPES
from turnwise.models.memory.estimate import GIB, MemoryEstimate
from turnwise.models.memory.plan import PAGE, MemoryItem, MemoryPlan, plan_memory
from turnwise.models.memory.shapes import ModelShape, config_shape, known_config, load_config
from turnwise.run.resources import device_memory, memory_request

HEADERS = ("GiB of", "GPU, rolling out", "GPU, updating", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    rows: Sequence[tuple[str, str, str, str]]
    """Columns as in HEADERS."""
    lines: Sequence[str]
    """Description of the plan."""


def report_plan(
    model: str | None, shape: str | None, gpu_gib: float | None, overrides: Sequence[tuple[str, str]]
) -> PlanReport:
    """Plan the memory of `model`, a name or folder, or of a known `shape`. `gpu_gib` None: this machine's GPU."""
    if (model is None) == (shape is None):
        raise UserError("A plan needs one model. Name a model or a shape.")
    model_config = load_config(model) if model is not None else known_config(shape or "")
    return _report(build({}, overrides), model_config, _device_bytes(gpu_gib))


def plan_on_device(config: Config, model: str, device_bytes: int) -> PlanReport:
    """Plan the memory of a run whose model, a name or folder, is not loaded."""
    return _report(config, load_config(model), device_bytes)


def _report(config: Config, model_config: Any, device_bytes: int) -> PlanReport:
    lora, parameter_bytes = config.lora, 2 if config.model.dtype == "auto" else DTYPES[config.model.dtype].itemsize
    sizes = config_shape(model_config, rank=lora.rank, targets=lora.targets, parameter_bytes=parameter_bytes)
    needs = MemoryEstimate(shape=sizes, compiled=config.system.compile)
    plan = plan_memory(needs, memory_request(config), device_bytes)
    return PlanReport(rows=_rows(plan), lines=_lines(plan, config, sizes))


def _device_bytes(gpu_gib: float | None) -> int:
    if gpu_gib is not None:
        if not 0 < gpu_gib < 1 << 20:
            raise UserError(f"gpu_memory {gpu_gib:g} is not the size of a GPU. Give it in GiB, such as 24.")
        return int(gpu_gib * GIB)
    if not torch.cuda.is_available():
        raise UserError("This machine has no GPU. Give the size of one in GiB, such as 24.")
    return device_memory(torch.device("cuda", torch.cuda.current_device()))


def _rows(plan: MemoryPlan) -> list[tuple[str, str, str, str]]:
    rows = [*(_row(item.name, item) for item in plan.items), _row("total", plan)]
    return [*rows, ("available", format_gib(plan.device_bytes), format_gib(plan.device_bytes), "")]


def _row(name: str, item: MemoryItem | MemoryPlan) -> tuple[str, str, str, str]:
    return name, format_gib(item.rollout), format_gib(item.update), format_gib(item.host)


def format_gib(size: int) -> str:
    return f"{size / GIB:.2f}" if size else ""


def _lines(plan: MemoryPlan, config: Config, shape: ModelShape) -> list[str]:
    share = 100 * shape.trained / shape.parameters
    lines = [
        f"{shape.parameters / 1e6:,.0f}M parameters, {shape.trained / 1e6:,.0f}M of them trained ({share:.3g}%)",
        plan.describe(),
    ]
    if plan.pages is not None:
        held, longest, episodes = plan.pages * PAGE, config.rollout.max_tokens, config.rollout.in_flight
        lines.append(
            f"the KV cache holds {held:,} tokens: {held // longest} of {episodes} episodes of {longest:,} tokens"
        )
    return lines
