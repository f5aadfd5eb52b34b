"""Check the simulator of `turnwise cluster plan` against real runs: predicted and measured seconds per step.

    python benchmarks/simulate_check.py [--steps 12] [--staleness 0 2] [--repeats 32] [--out FOLDER]

Runs `turnwise train` on the environment of `slow_tools.py` (5 turns, each waits for a tool with median 0.5 s and 99th
percentile 8 s). The rates come from the metrics of the first run alone: seconds of the engine per sampled token and of
the learner per step. So the other runs are predicted, not fitted. Tool latencies are drawn anew, `repeats` times: the
slowest of 128 episodes decides about a synchronous step, so single steps differ widely.

On a CPU, engine and learner are threads of one process: "shared processor" is the prediction to compare. "Separate" is
for runs whose learner has its own GPUs.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from runs import train, training_rows
from slow_tool_env import MEDIAN_S, PARTIES, SPREAD, TURNS

from turnwise.cluster.simulate import Amount, EngineRates, Layout, LearnerRates, Prediction, Workload, simulate

ENV = Path(__file__).with_name("slow_tool_env.py").resolve()
GROUPS, GROUP_SIZE, IN_FLIGHT = 16, 8, 256
SETTINGS = (
    f"--rollout.groups={GROUPS}",
    f"--rollout.group_size={GROUP_SIZE}",
    f"--rollout.in_flight={IN_FLIGHT}",
    "--train.mini_batch=128",
    "--algo.advantage=grpo",
    "--eval.episodes=1",
)
LEARNER = ("time/estimate_s", "time/diagnose_s", "time/update_s", "time/record_s")
Rows = Sequence[dict[str, Any]]


def mean(rows: Rows, *names: str) -> float:
    """Return the mean over steps of the sum of these metrics."""
    return statistics.mean(sum(row[name] for name in names) for row in rows)


def steady(rows: Rows, staleness: int) -> Rows:
    """Leave out the steps that fill the pipeline, and the last ones, beside which no later step is rolled out."""
    return rows[staleness + 1 : len(rows) - staleness]


def measure_rates(rows: Rows) -> tuple[Workload, EngineRates, LearnerRates]:
    tokens_per_turn = mean(rows, "rollout/sampled_tokens") / (GROUPS * GROUP_SIZE * TURNS)
    workload = Workload(
        groups=GROUPS,
        group_size=GROUP_SIZE,
        turns=Amount(median=TURNS),
        prompt_tokens=0,
        action_tokens=Amount(median=tokens_per_turn),
        observation_tokens=Amount(median=0),
        tool_s=Amount(median=MEDIAN_S, sigma=SPREAD),
    )
    tokens_per_s = mean(rows, "rollout/sampled_tokens") / mean(rows, "time/engine_s")
    learner = LearnerRates(seconds_per_token=0.0, seconds_per_step=mean(rows, *LEARNER))
    return workload, EngineRates(tokens_per_s={1: tokens_per_s}), learner


def predict(
    rates: tuple[Workload, EngineRates, LearnerRates], staleness: int, repeats: int, *, shared: bool
) -> list[Prediction]:
    """`shared`: engine and learner take turns on the same processor."""
    layout = Layout(
        engines=1, learners=1, colocated=shared, slots=IN_FLIGHT, in_flight=IN_FLIGHT, max_staleness=staleness
    )
    return [simulate(*rates, layout, steps=4, seed=seed) for seed in range(repeats)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--repeats", type=int, default=32)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.steps < 2 * max(args.staleness) + 2:
        parser.error("--steps must be at least twice the largest --staleness plus 2")
    out = args.out or Path(tempfile.mkdtemp(prefix="simulate_check_"))
    out.mkdir(parents=True, exist_ok=True)
    train(f"{ENV}:Slow", out, "warm-up", [*SETTINGS, "--train.steps=1"])
    os.environ[PARTIES] = "1"
    names = ("max_staleness", "measured step", "predicted: shared processor", "predicted: separate processors")
    table = Table(*names, "staleness: measured", "predicted")
    rates = None
    for staleness in args.staleness:
        options = [*SETTINGS, f"--train.steps={args.steps}", f"--rollout.max_staleness={staleness}"]
        rows = steady(training_rows(train(f"{ENV}:Slow", out, f"staleness-{staleness}", options)), staleness)
        rates = rates or measure_rates(rows)
        seconds = [row["time/total_s"] for row in rows]
        measured = statistics.mean(seconds)
        error = statistics.stdev(seconds) / len(seconds) ** 0.5
        found = {shared: predict(rates, staleness, args.repeats, shared=shared) for shared in (True, False)}
        predicted = {shared: statistics.mean(each.step_s for each in found[shared]) for shared in found}
        age = statistics.mean(row.get("rollout/staleness", 0.0) for row in rows)
        table.add_row(
            str(staleness),
            f"{measured:.1f} +- {error:.1f} s ({len(rows)} steps)",
            *(f"{each:.1f} s ({100 * (each / measured - 1):+.0f} %)" for each in predicted.values()),
            f"{age:.2f}",
            f"{statistics.mean(each.staleness for each in found[True]):.2f}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
