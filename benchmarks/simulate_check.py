"""Check the simulator of `turnwise cluster plan` against real runs: predicted and measured seconds per step.

    python benchmarks/simulate_check.py [--steps 10] [--staleness 0 2] [--ray] [--together] [--out FOLDER]

Runs `turnwise train` on the environment of `slow_tools.py`: 5 turns, each waits for a tool with median 0.5 s, here with
a time limit of 2 s. Nothing is fitted to the measured runs: the rates come from short runs without slow tools, tokens/s
with 1 to 128 running episodes, and seconds of the learner and of publishing per step. Tool latencies are drawn anew,
`repeats` times: the slowest of 128 episodes decides about a synchronous step, so single steps differ.

In one process, engine and learner are threads. They alternate at times (Python runs one thread at a time) and compute
at the same time otherwise: the step is between the predictions "take turns" and "separate". `--ray` puts them into
actors, which are separate. Runs with max_staleness S have S + 1 times as many steps. `--together` starts all runs at
once: give each two cores.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from runs import train, training_rows
from slow_tool_env import LIMIT, MEDIAN_S, PARTIES, SPREAD, TURNS

from turnwise.cluster.simulate import Amount, EngineRates, Layout, LearnerRates, Prediction, Workload, simulate

ENV = Path(__file__).with_name("slow_tool_env.py").resolve()
GROUPS, GROUP_SIZE, LIMIT_S = 16, 8, 2.0
EPISODES = GROUPS * GROUP_SIZE
BATCHES = (1, 4, 16, 64, EPISODES)
"""Running episodes for which tokens/s are measured."""
SETTINGS = (
    f"--rollout.group_size={GROUP_SIZE}",
    "--algo.advantage=grpo",
    "--algo.old_logprobs=learner",  # as asynchronous training has it, so that all learners do the same work
    "--algo.correction=truncated",
    "--algo.entropy_coef=0.001",  # else groups with equal rewards are not trained on
    "--model.warmup_steps=0",  # the model never learns when to stop: all turns have the same length
    "--rollout.max_new_tokens=16",
    "--rollout.trial_s=0",
    "--eval.episodes=1",
)
RAY = ("--cluster.engines=1", "--cluster.learners=1")
LEARNER = ("time/estimate_s", "time/diagnose_s", "time/update_s", "time/record_s")
CALIBRATION_STEPS = 4
Rows = Sequence[dict[str, Any]]
Rates = tuple[Workload, EngineRates, LearnerRates]


def mean(rows: Rows, *names: str) -> float:
    """Return the mean over steps of the sum of these metrics."""
    return statistics.mean(sum(row[name] for name in names) for row in rows)


def steady(rows: Rows, staleness: int) -> Rows:
    """Leave out the steps that fill the pipeline, and the last ones, beside which no later step is rolled out."""
    return rows[staleness + 2 : len(rows) - staleness]


def calibrate(out: Path, running: int) -> Rows:
    """Train without slow tools, with this number of running episodes; on fewer episodes if few run at a time."""
    groups = GROUPS if running >= GROUP_SIZE else 2
    options = [*SETTINGS, *size_options(groups, running), f"--train.steps={CALIBRATION_STEPS}"]
    return training_rows(train(f"{ENV}:Slow", out, f"calibrate-{running}", options))[1:]


def size_options(groups: int, in_flight: int) -> list[str]:
    settings = {"rollout.groups": groups, "rollout.in_flight": in_flight, "train.mini_batch": groups * GROUP_SIZE}
    return [f"--{name}={value}" for name, value in settings.items()]


def measure_rates(by_batch: dict[int, Rows]) -> Rates:
    """Rendering and environments count as the engine's time: they are in its process, on its core."""
    whole = by_batch[EPISODES]
    workload = Workload(
        groups=GROUPS,
        group_size=GROUP_SIZE,
        turns=Amount(median=TURNS),
        prompt_tokens=0,
        action_tokens=Amount(median=mean(whole, "rollout/sampled_tokens") / (EPISODES * TURNS)),
        observation_tokens=Amount(median=0),
        tool_s=Amount(median=MEDIAN_S, sigma=SPREAD, maximum=LIMIT_S),
    )
    speeds = {
        batch: mean(rows, "rollout/sampled_tokens") / mean(rows, "time/rollout_s") for batch, rows in by_batch.items()
    }
    return (
        workload,
        EngineRates(tokens_per_s=speeds),
        LearnerRates(
            seconds_per_token=0.0, seconds_per_step=mean(whole, *LEARNER), transfer_s=mean(whole, "time/publish_s")
        ),
    )


def predict(rates: Rates, staleness: int, repeats: int, *, shared: bool) -> list[Prediction]:
    """`shared`: engine and learner take turns on the same processor."""
    slots = EPISODES * (staleness + 1)
    layout = Layout(engines=1, learners=1, colocated=shared, slots=slots, in_flight=slots, max_staleness=staleness)
    return [simulate(*rates, layout, steps=6, seed=seed) for seed in range(repeats)]


def run_case(out: Path, name: str, steps: int, staleness: int, more: Sequence[str]) -> Rows:
    length = [f"--train.steps={steps * (staleness + 1)}", f"--rollout.max_staleness={staleness}"]
    options = [*SETTINGS, *size_options(GROUPS, EPISODES * (staleness + 1)), *length, *more]
    return steady(training_rows(train(f"{ENV}:Slow", out, name, options)), staleness)


def add_row(table: Table, name: str, rows: Rows, found: dict[bool, list[Prediction]]) -> None:
    seconds = [row["time/total_s"] for row in rows]
    measured, error = statistics.mean(seconds), statistics.stdev(seconds) / len(seconds) ** 0.5
    predicted = {shared: statistics.mean(each.step_s for each in found[shared]) for shared in found}
    table.add_row(
        name,
        f"{measured:.2f} +- {error:.2f} s ({len(rows)} steps)",
        *(f"{each:.2f} s ({100 * (each / measured - 1):+.0f} %)" for each in predicted.values()),
        f"{mean(rows, *LEARNER):.2f} s",
        f"{statistics.mean(row.get('rollout/staleness', 0.0) for row in rows):.2f}",
        f"{statistics.mean(each.staleness for each in found[False]):.2f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--repeats", type=int, default=16)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.steps < 4:
        parser.error("--steps must be at least 4")
    out = args.out or Path(tempfile.mkdtemp(prefix="simulate_check_"))
    out.mkdir(parents=True, exist_ok=True)
    console, pool = Console(width=150), ThreadPoolExecutor(8 if args.together else 1)
    rates = measure_rates(dict(zip(BATCHES, pool.map(lambda batch: calibrate(out, batch), BATCHES), strict=True)))
    speeds = ", ".join(f"{batch}: {speed:.0f}" for batch, speed in rates[1].tokens_per_s.items())
    console.print(f"tokens/s by running episodes: {speeds}")
    console.print(f"learner: {rates[2].seconds_per_step:.2f} s per step; publishing: {rates[2].transfer_s:.3f} s")
    predictions = {
        staleness: {shared: predict(rates, staleness, args.repeats, shared=shared) for shared in (True, False)}
        for staleness in args.staleness
    }
    os.environ[PARTIES], os.environ[LIMIT] = "1", str(LIMIT_S)
    cases: dict[str, tuple[int, Sequence[str]]] = {
        f"one process, max_staleness {each}": (each, ()) for each in args.staleness
    }
    if args.ray:
        cases |= {f"Ray, max_staleness {each}": (each, RAY) for each in args.staleness}
    running = {
        name: pool.submit(run_case, out, f"case-{number}", args.steps, staleness, more)
        for number, (name, (staleness, more)) in enumerate(cases.items())
    }
    columns = ("measured step", "predicted: take turns", "predicted: separate", "learner", "age", "predicted")
    table = Table("run", *columns)
    for name, each in running.items():
        add_row(table, name, each.result(), predictions[cases[name][0]])
    console.print(table)


if __name__ == "__main__":
    main()
