"""B8: asynchronous training by rollout.max_staleness: seconds per step with slow tools, and learning curves.

    python benchmarks/staleness.py speed [--steps 12] [--staleness 0 1 2 4] [--out FOLDER]
    python benchmarks/staleness.py learning [--steps 150] [--seeds 0 1 2] [--jobs 1] [--out FOLDER]

speed: `turnwise train` on the environment of `slow_tools.py` (5 turns, each waits for a tool with median 0.5 s and 99th
percentile 8 s). Staleness 0 is the synchronous loop. The time of a step is the time between two updates.

learning: FrozenLake with and without importance sampling (algo.correction), several seeds, one thread per run. Finished
runs are not repeated.
"""

import argparse
import os
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table
from runs import summary, train, training_rows
from slow_tool_env import PARTIES

ENV = Path(__file__).with_name("slow_tool_env.py").resolve()
CORRECTED = ["--algo.correction=truncated", "--algo.old_logprobs=learner"]
UNCORRECTED = ["--algo.correction=none", "--algo.old_logprobs=sampler"]


def measure_speed(steps: int, staleness: list[int], out: Path) -> Table:
    settings = ["--rollout.groups=16", "--rollout.group_size=8", "--train.mini_batch=128", "--algo.advantage=grpo"]
    settings.append("--rollout.trial_s=0")
    train(f"{ENV}:Slow", out, "warm-up", [*settings, "--train.steps=1", "--eval.episodes=1"])
    os.environ[PARTIES] = "1"
    table = Table(
        "max_staleness", "seconds per step", "waiting for rollouts", "engine idle", "staleness, mean", "speed-up"
    )
    first = 0.0
    for each in staleness:
        options = [*settings, f"--train.steps={steps}", "--eval.episodes=1", f"--rollout.max_staleness={each}"]
        rows = training_rows(train(f"{ENV}:Slow", out, f"staleness-{each}", options))
        step_s = statistics.mean(row["time/total_s"] for row in rows)
        waiting_s = statistics.mean(row["time/rollout_s"] for row in rows)
        idle = statistics.mean(row["time/engine_idle_share"] for row in rows)
        age = statistics.mean(row.get("rollout/staleness", 0.0) for row in rows)
        first = first or step_s
        shown = (f"{step_s:.2f}", f"{waiting_s:.2f}", f"{100 * idle:.0f} %", f"{age:.2f}", f"{first / step_s:.2f}")
        table.add_row(str(each), *shown)
    return table


def measure_learning(steps: int, staleness: list[int], seeds: list[int], jobs: int, out: Path) -> Table:
    corrections = {"corrected": CORRECTED, "not corrected": UNCORRECTED}

    def run(each: tuple[int, str, int]) -> Path:
        age, correction, seed = each
        options = [
            f"--train.steps={steps}",
            f"--seed={seed}",
            f"--rollout.max_staleness={age}",
            *corrections[correction],
        ]
        return train("frozen_lake", out, f"{age}-{correction.replace(' ', '-')}-{seed}", options)

    cases = [(age, correction, seed) for age in staleness for correction in corrections for seed in seeds]
    with ThreadPoolExecutor(jobs) as pool:
        folders = dict(zip(cases, pool.map(run, cases), strict=True))
    table = Table("max_staleness", "importance sampling", "success after, each seed", "mean", "minutes")
    for age in staleness:
        for correction in corrections:
            found = [summary(folders[age, correction, seed]) for seed in seeds]
            successes = [each["success_after"] for each in found]
            minutes = statistics.mean(each["wall_s"] for each in found) / 60
            shown = ", ".join(f"{100 * each:.1f} %" for each in successes)
            table.add_row(str(age), correction, shown, f"{100 * statistics.mean(successes):.1f} %", f"{minutes:.1f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "learning"])
    parser.add_argument("--steps", type=int)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time (learning)")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    out = args.out or Path(tempfile.mkdtemp(prefix="staleness_"))
    out.mkdir(parents=True, exist_ok=True)
    if args.what == "speed":
        table = measure_speed(args.steps or 12, args.staleness, out)
    else:
        table = measure_learning(args.steps or 150, args.staleness, args.seeds, args.jobs, out)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
