"""Measurements on a GPU: repeated timings, their table, and vLLM in a process of its own."""

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.table import Table
from rollout_job import RolloutJob

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    side: str
    count: int
    """Episodes or tokens."""
    seconds: list[float]
    memory_gib: float = 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def wait_for_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def release_memory() -> None:
    """Return the memory of what is not used any more, also to other processes."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return the result and the seconds, with what the GPU does for it."""
    wait_for_device()
    began = time.perf_counter()
    result = work()
    wait_for_device()
    return result, time.perf_counter() - began


def measure_update(side: str, tokens: int, update: Callable[[], None], repeats: int) -> Measurement:
    """Return the seconds of optimizer steps and their peak memory."""
    for _ in range(2):  # these include compilation
        update()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    seconds = [timed(update)[1] for _ in range(repeats)]
    return Measurement(side=side, count=tokens, seconds=seconds, memory_gib=torch.cuda.max_memory_allocated() / 2**30)


def measure_vllm(
    job: RolloutJob,
    model: Path,
    repeats: int,
    engine: dict[str, Any],
    marks: Sequence[int] = (),
    limit_s: float | None = None,
) -> list[Measurement]:
    """Run vllm_side.py in a process that contains vLLM's engine, its fastest mode.

    VLLM_PATH: folder of the package if it is not installed; it comes first on the path. VLLM_PYTHON: another Python.
    `engine`: engine arguments. `marks`: ids that stand for an image. `limit_s`: stops it; finished repeats count.
    """
    path = os.pathsep.join(each for each in (os.environ.get("VLLM_PATH"), os.environ.get("PYTHONPATH")) if each)
    request = {"job": asdict(job), "repeats": repeats, "model": str(model), "marks": list(marks), "engine": engine}
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "seconds.json"
        side = Path(__file__).with_name("vllm_side.py")
        python = os.environ.get("VLLM_PYTHON", sys.executable)
        environment = {**os.environ, "PYTHONPATH": path, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        command = [python, str(side), json.dumps(request), str(out)]
        try:
            subprocess.run(command, check=True, env=environment, timeout=limit_s)
        except subprocess.TimeoutExpired:
            Console().print(f"vLLM was stopped after {limit_s:.0f} s")
        seconds = json.loads(out.read_text()) if out.exists() else []
    names = ("vLLM, log-probabilities", "vLLM, no log-probabilities")
    return [
        Measurement(side=name, count=job.episodes, seconds=each)
        for name, each in zip(names, seconds, strict=False)
        if each
    ]


def show(title: str, unit: str, measurements: Sequence[Measurement]) -> None:
    """Print a table. The ratio is the speed per unit relative to the first row."""
    columns = ("side", unit, "seconds, median", "lowest", "highest", f"{unit}/s", "ratio", "GiB")
    table = Table(*columns, title=title)
    rates = [each.count / each.median for each in measurements]
    for each, rate in zip(measurements, rates, strict=True):
        numbers = (each.median, min(each.seconds), max(each.seconds))
        row = (each.side, str(each.count), *(f"{number:.3f}" for number in numbers))
        table.add_row(*row, f"{rate:.1f}", f"{rate / rates[0]:.2f}", f"{each.memory_gib:.1f}")
    Console(width=120).print(table)
