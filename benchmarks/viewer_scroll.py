"""Frames of the viewer's pages while they are scrolled, over a run with 100 MB of metrics.

    python benchmarks/viewer_scroll.py [--steps 47000] [--seconds 4] [--folder FOLDER]

Needs Chromium and Playwright. The run is synthetic, as in `viewer.py`: 60 metrics and one trajectory per step. Each
page is scrolled with the wheel while the time of every frame is recorded. "main thread" is the CPU time of the page's
main thread per frame, which other load affects less than wall-clock time: below 16.7 ms a page keeps up with 60 frames
per second.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from viewer import Server, make_run

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
NOTCH = 120
"""Pixels of one notch of the wheel."""
RECORD = """() => {
  window.frames_ms = [];
  let last = performance.now();
  const frame = (now) => { window.frames_ms.push(now - last); last = now; requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
}"""
PAGES = {
    "page of the run": ("#/run?run=long", ".run-charts canvas"),
    "all curves": ("#/curves?run=long", ".panel canvas"),
    "list of trajectories": ("#/trajectories?run=long", "tbody tr"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=47_000, help="47,000 steps are 100 MB of metrics")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each page is scrolled")
    parser.add_argument("--folder", type=Path, help="folder of the run; an existing run is used again")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        if not (folder / "long").exists():
            make_run(folder / "long", steps=args.steps, episodes=1, show=True)
        server = Server(folder)
        try:
            report(server.address, (folder / "long/metrics.jsonl").stat().st_size, args.seconds)
        finally:
            server.close()


def report(address: str, size: int, seconds: float) -> None:
    from playwright.sync_api import sync_playwright

    browser_path = next(filter(None, map(shutil.which, BROWSERS)))
    titles = ("page", "shown s", "frames", "median ms", "99 % ms", "longest ms", "main thread ms")
    table = Table(*titles, title=f"scrolling with {size / 1e6:.0f} MB of metrics")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        counters = page.context.new_cdp_session(page)
        counters.send("Performance.enable", {"timeDomain": "threadTicks"})
        for label, (view, element) in PAGES.items():
            page.goto("about:blank")
            began = time.perf_counter()
            page.goto(f"{address}{view}")
            page.locator(element).first.wait_for(timeout=600_000)
            shown = time.perf_counter() - began
            page.wait_for_timeout(1000)
            frames, cpu_ms = scroll(page, counters, seconds)
            page.wait_for_load_state("networkidle", timeout=600_000)
            frames.sort()
            numbers = (statistics.median(frames), frames[int(0.99 * len(frames))], frames[-1], cpu_ms / len(frames))
            times = [f"{number:.1f}" for number in numbers]
            table.add_row(label, f"{shown:.1f}", str(len(frames)), *times)
        browser.close()
    console = Console()
    console.print(table)
    console.print(f"on {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


def scroll(page: "Page", counters: "CDPSession", seconds: float) -> tuple[list[float], float]:
    """Scroll down and up again; return the milliseconds of each frame and the CPU milliseconds of the main thread."""
    page.mouse.move(640, 430)
    page.evaluate(RECORD)
    before, began = task_s(counters), time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        page.mouse.wheel(0, NOTCH if elapsed < seconds / 2 else -NOTCH)
    return page.evaluate("window.frames_ms"), 1000 * (task_s(counters) - before)


def task_s(counters: "CDPSession") -> float:
    metrics = counters.send("Performance.getMetrics")["metrics"]
    return next(float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")


if __name__ == "__main__":
    main()
