"""Where a call spends its time on a GPU and on the host: largest kernels, how long the GPU idles, largest functions."""

import cProfile
import io
import pstats
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from measuring_gpu import timed
from rich.console import Console
from torch.profiler import ProfilerActivity, profile

NAME_WIDTH = 78
write = Console(width=160, markup=False, highlight=False).print


def show_profile(title: str, work: Callable[[], Any], rows: int = 20) -> None:
    """Run the work twice: once recording the GPU's kernels, once recording the host's functions."""
    if torch.cuda.is_available():
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            _, seconds = timed(work)
        kernels = [each for each in recorded.profiler.kineto_results.events() if each.duration_ns() > 0]
        on_device = [each for each in kernels if each.device_type() == torch.autograd.DeviceType.CUDA]
        show_kernels(title, [(each.name(), each.start_ns(), each.duration_ns()) for each in on_device], seconds, rows)
    host = cProfile.Profile()
    host.enable()
    timed(work)
    host.disable()
    show_functions(title, host, rows)


def show_kernels(title: str, kernels: Iterable[tuple[str, int, int]], seconds: float, rows: int) -> None:
    """Print the largest kernels and the share of the time in which none runs. Times are in nanoseconds."""
    total, calls, ranges = Counter[str](), Counter[str](), list[tuple[int, int]]()
    for name, start, duration in kernels:
        total[name] += duration
        calls[name] += 1
        ranges.append((start, start + duration))
    busy, gaps = covered(ranges)
    longest = ", ".join(f"{gap / 1e6:.1f}" for gap in sorted(gaps, reverse=True)[:8])
    write(f"{title}: {seconds:.3f} s, GPU busy {busy / 1e9:.3f} s, idle {max(0.0, 1 - busy / 1e9 / seconds):.0%}")
    write(f"  longest gaps between kernels: {longest} ms")
    for name, duration in total.most_common(rows):
        write(f"  {duration / 1e6:9.1f} ms {calls[name]:7d} x  {name[:NAME_WIDTH]}")


def covered(ranges: list[tuple[int, int]]) -> tuple[int, list[int]]:
    """Return the length of the union of the ranges, and the gaps in it."""
    length, gaps, end = 0, list[int](), None
    for start, stop in sorted(ranges):
        if end is None or start > end:
            if end is not None:
                gaps.append(start - end)
            length += stop - start
            end = stop
        elif stop > end:
            length += stop - end
            end = stop
    return length, gaps


def show_functions(title: str, host: cProfile.Profile, rows: int) -> None:
    """Print the functions with the longest own times, and those of turnwise with what they call."""
    for order, pattern in (("tottime", ""), ("cumtime", "turnwise")):
        text = io.StringIO()
        pstats.Stats(host, stream=text).sort_stats(order).print_stats(*filter(None, [pattern]), rows)
        lines = [line for line in text.getvalue().splitlines() if line.strip()]
        first = next(index for index, line in enumerate(lines) if line.lstrip().startswith("ncalls"))
        write(f"{title}, host by {order}:")
        for line in lines[first : first + rows + 1]:
            *numbers, name = line.split(None, 5)
            write("  " + "".join(f"{each:>16}" for each in numbers[:4]) + f"  {name[-NAME_WIDTH:]}")
