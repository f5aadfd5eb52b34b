"""Processor cores, memory and GPUs of this machine."""

import importlib
import os
from collections.abc import Callable
from typing import Any

GIB = 2**30


def describe_cores() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{usable} usable of {os.cpu_count()}"


def describe_memory() -> str:
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = (page * os.sysconf(name) / GIB for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    except (ValueError, OSError, AttributeError):
        return "unknown"
    return f"{total:.1f} GiB, {free:.1f} GiB of it unused"


def describe_gpus() -> str:
    return ask_torch(_gpus)


def _gpus(torch: Any) -> str:
    if not torch.cuda.is_available():
        return "none that torch can use: training runs on the CPU"
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return ", ".join(f"{device.name} ({device.total_memory / GIB:.0f} GiB)" for device in devices)


def ask_torch(question: Callable[[Any], str]) -> str:
    """Answer a question with torch, which can be missing or broken."""
    try:
        return question(importlib.import_module("torch"))
    except (ImportError, OSError):
        return "unknown without torch"
