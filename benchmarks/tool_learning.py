"""Learning to call a tool with and without a reward for calls: `lookup` with tiny, over seeds.

    python benchmarks/tool_learning.py --out runs/tools [--seeds 0,1,2] [--picture docs/curves/tools.svg] [-- SETTINGS]

Three cases with otherwise equal settings: a reward for the right call (`env.params.call_reward`), the outcome alone,
and a reward for the right call while a fifth of all calls fail (not the agent's fault). Useful calls are those with the
right argument. Every run is a process with one thread; finished runs are not repeated.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from panels import BLUE, ORANGE, Grid, Panel, small_multiples
from rich.console import Console
from rich.table import Table
from runs import summary, train, training_rows

FAULTY = f"{Path(__file__).parent / 'faulty_lookup.py'}:FaultyLookup"
CASES = {
    "process reward": ["--env.params.call_reward=0.5"],
    "outcome alone": ["--env.params.call_reward=0"],
    "faults": ["--env.params.call_reward=0.5", f"--env.kind={FAULTY}"],
}
GOAL = 0.9
QUESTION = ("Room of ", "?")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("settings", nargs="*", help="settings of every run, after --")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    seeds = [int(seed) for seed in args.seeds.split(",")]
    results = {name: [run(args, name, seed) for seed in seeds] for name in CASES}
    Console(width=150).print(table_of(results))
    if args.picture:
        args.picture.write_text(picture_of(results))


def run(args: argparse.Namespace, name: str, seed: int) -> dict[str, Any]:
    options = [*CASES[name], f"--seed={seed}", "--record.trajectories=1"]
    folder = train("lookup", args.out, f"{name.split()[0]}-{seed}", [*options, *args.settings])
    rows = training_rows(folder)
    return summary(folder) | {
        "success": [row["rollout/success"] for row in rows],
        "episodes": [row["rollout/episodes"] for row in rows],
        "useful": list(useful_calls(folder)),
        "retried": sum(row.get("rollout/infra_errors", 0.0) for row in rows),
    }


def useful_calls(folder: Path) -> Iterator[float]:
    """Yield the share of episodes with a useful call, for each step."""
    for file in sorted((folder / "trajectories").glob("step_*.jsonl")):
        episodes = [json.loads(line) for line in file.read_text().splitlines()]
        yield sum(map(has_useful_call, episodes)) / len(episodes)


def has_useful_call(episode: dict[str, Any]) -> bool:
    question = episode["start"]["rows"][0][0]
    call = f"<call>room {question.removeprefix(QUESTION[0]).removesuffix(QUESTION[1])}<"
    return any(f"{turn['message']['content']}<".startswith(call) for turn in episode["turns"])


def episodes_to(success: list[float], episodes: list[float], goal: float = GOAL) -> str:
    """Return the number of episodes until the mean over ten steps first reaches the goal."""
    for end in range(10, len(success) + 1):
        if sum(success[end - 10 : end]) / 10 >= goal:
            return f"{sum(episodes[:end]):,.0f}"
    return "not reached"


def table_of(results: dict[str, list[dict[str, Any]]]) -> Table:
    table = Table(title="lookup, tiny: 256 held-out tasks at temperature 0.5")
    for column in (
        "reward",
        "before",
        "after, by seed",
        "useful calls, first to last step",
        f"episodes to {GOAL:.0%}",
        "retried episodes",
    ):
        table.add_column(column, justify="left" if column == "reward" else "right")
    for name, runs in results.items():
        table.add_row(
            name,
            "  ".join(f"{each['success_before']:.1%}" for each in runs),
            "  ".join(f"{each['success_after']:.1%}" for each in runs),
            "  ".join(f"{each['useful'][0]:.0%} to {each['useful'][-1]:.0%}" for each in runs),
            "  ".join(episodes_to(each["success"], each["episodes"]) for each in runs),
            "  ".join(f"{each['retried']:,.0f}" for each in runs),
        )
    return table


def picture_of(results: dict[str, list[dict[str, Any]]]) -> str:
    panels = [
        Panel(
            runs=[each[key] for each in runs],
            title=f"{label}, {name}",
            label=label,
            colour=BLUE if key == "success" else ORANGE,
        )
        for key, label in (("success", "success"), ("useful", "useful calls"))
        for name, runs in results.items()
    ]
    return small_multiples(
        "lookup with tiny: one line per seed, training episodes",
        panels,
        Grid(columns=len(CASES), width=220, height=110),
    )


if __name__ == "__main__":
    main()
