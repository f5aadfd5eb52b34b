"""Predict step times for 8 to 1,024 GPUs: the table of docs/cluster-plan.md. Needs no GPU.

    python benchmarks/cluster_sizes.py [--gpus 8 64 256 1024] [--gpu H100]

Qwen2.5-7B on `math_code`, 8 episodes per GPU and step, 4 optimizer steps per training step, rates estimated from the
data sheet; tools with median 1 s and 99th percentile 8 s.
"""

import argparse
import math
import statistics

from rich.console import Console
from rich.table import Table

from turnwise.cluster.plan import PredictedDivision, plan_cluster
from turnwise.cluster.rates import EpisodesTable, MeasuredRates, find_gpu
from turnwise.run.cluster_report import build_job
from turnwise.run.configure import configure

GROUP_SIZE, EPISODES_PER_GPU, OPTIMIZER_STEPS = 16, 8, 4
EPISODES = EpisodesTable(
    turns=5,
    prompt_tokens=300,
    action_tokens=200,
    action_sigma=0.6,
    observation_tokens=100,
    tool_s=1.0,
    tool_sigma=math.log(8) / statistics.NormalDist().inv_cdf(0.99),
)


def best_by_staleness(gpus: int, gpu_name: str) -> dict[int, PredictedDivision]:
    """Return the fastest division of each max_staleness."""
    episodes = gpus * EPISODES_PER_GPU
    settings = {
        "model.name": "qwen2.5-7b",
        "rollout.groups": episodes // GROUP_SIZE,
        "rollout.group_size": GROUP_SIZE,
        "rollout.in_flight": 2 * episodes,
        "rollout.max_new_tokens": 1024,
        "rollout.max_tokens": 4096,
        "rollout.max_staleness": 1,
        "train.mini_batch": episodes // OPTIMIZER_STEPS,
    }
    job = build_job(configure("math_code", overrides=list(settings.items())), MeasuredRates(episodes=EPISODES))
    found: dict[int, PredictedDivision] = {}
    for each in plan_cluster(job, find_gpu(gpu_name), gpus, steps=3):
        found.setdefault(each.division.layout.max_staleness, each)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 64, 256, 1024])
    parser.add_argument("--gpu", default="H100")
    args = parser.parse_args()
    table = Table(
        "GPUs", "episodes", "synchronous", "GPUs idle", "learners + engines", "asynchronous", "GPUs idle", "ratio"
    )
    for gpus in args.gpus:
        best = best_by_staleness(gpus, args.gpu)
        together, apart = best[0], best[1]
        layout = apart.division.layout
        table.add_row(
            f"{gpus:,}",
            f"{gpus * EPISODES_PER_GPU:,}",
            f"{together.prediction.step_s:.1f} s",
            f"{100 * together.gpu_idle:.0f} %",
            f"{layout.learners} + {layout.engines}",
            f"{apart.prediction.step_s:.1f} s",
            f"{100 * apart.gpu_idle:.0f} %",
            f"{together.prediction.step_s / apart.prediction.step_s:.2f}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
