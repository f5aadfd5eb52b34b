"""An ablation of StarPO-S on the bandit: which part prevents the echo trap of GRPO, over seeds.

    python benchmarks/collapse.py --out runs/collapse --picture docs/collapse.svg    # for docs/cases.md

All runs have the same settings except those of the method. Settings after `--` replace the common ones; use another
`--out` then. Finished runs are not repeated.
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from panels import BLUE, ORANGE, Grid, Panel, small_multiples
from rich.console import Console
from rich.table import Table
from runs import summary, train, training_rows

COMMON = (
    "--rollout.groups=32",
    "--rollout.group_size=8",
    "--train.optimizer.learning_rate=0.01",
    "--train.steps=60",
    "--train.schedule=constant",
)
GRPO = ("--algo.preset=starpo_grpo", "--algo.kl_coef=0")
ARMS: dict[str, tuple[str, ...]] = {
    "grpo": GRPO,
    "starpo_s": ("--algo.preset=starpo_s",),
    "grpo, one update per step": (*GRPO, "--train.mini_batch={episodes}"),
    "grpo + clip-higher": (*GRPO, "--algo.loss.clip_high=0.28"),
    "grpo + filter": (*GRPO, "--algo.filter=quarter"),
    "grpo + KL": ("--algo.preset=starpo_grpo", "--algo.kl_coef=0.1", "--algo.kl_estimator=k2"),
    "critic only": ("--algo.preset=starpo_ppo", "--algo.kl_coef=0"),
}
"""Settings of each arm; {episodes}: those of a step. The first two are drawn."""

TITLES = {"grpo": "no filter, no KL, symmetric clip", "starpo_s": "StarPO-S"}
COLOURS = {"grpo": ORANGE, "starpo_s": BLUE}
GRID = Grid(columns=2, width=310, height=120)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    key: str
    label: str
    top: float


METRICS = (
    Metric(key="rollout/success", label="success", top=1.0),
    Metric(key="rollout/reward_group_std", label="reward std in groups", top=0.5),
    Metric(key="train/entropy", label="entropy (nats)", top=2.5),
)


def run(out: Path, arm: str, seed: int, settings: Sequence[str]) -> Path:
    """Run training unless the run is finished, and return its folder."""
    name = f"{arm.replace(' ', '-').replace(',', '').replace('+', 'and')}-{seed}"
    given = dict(setting.removeprefix("--").partition("=")[::2] for setting in settings)
    episodes = int(given["rollout.groups"]) * int(given["rollout.group_size"])
    own = [setting.format(episodes=episodes) for setting in ARMS[arm]]
    return train("bandit", out, name, [*settings, *own, f"--seed={seed}"])


def last_mean(rows: Sequence[dict[str, Any]], key: str, count: int = 10) -> float:
    return statistics.fmean(row[key] for row in rows[-count:] if row[key] is not None)


def table_of(folders: dict[str, list[Path]]) -> Table:
    table = Table(title="bandit; means of the last 10 steps, by seed")
    for column in ("arm", "success", "reward", "groups without spread", "entropy", "test success after"):
        table.add_column(column, justify="left" if column == "arm" else "right")
    for arm, of_arm in folders.items():
        runs = [training_rows(folder) for folder in of_arm]
        after = [summary(folder)["success_after"] for folder in of_arm]
        keys = ("rollout/success", "rollout/reward", "rollout/zero_std_groups", "train/entropy")
        cells = [" ".join(f"{last_mean(rows, key):.2f}" for rows in runs) for key in keys]
        table.add_row(arm, *cells, " ".join(f"{each:.2f}" for each in after))
    return table


def picture(folders: dict[str, list[Path]]) -> str:
    """Draw a column per arm and a row per metric. Thin lines are seeds, the thick line is their mean."""
    runs = {arm: [training_rows(folder) for folder in folders[arm]] for arm in TITLES}
    panels = [
        Panel(
            runs=[[row[metric.key] or 0.0 for row in rows] for rows in runs[arm]],
            title=title if metric is METRICS[0] else "",
            label=metric.label,
            top=metric.top,
            colour=COLOURS[arm],
        )
        for metric in METRICS
        for arm, title in TITLES.items()
    ]
    seeds = f"{len(folders['grpo'])} seeds"
    return small_multiples(f"bandit with tiny: equal tasks, episodes and learning rates, {seeds}", panels, GRID)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--picture", type=Path, help="SVG file to write")
    parser.add_argument("--seeds", type=lambda text: [int(each) for each in text.split(",")], default=[0, 1, 2])
    parser.add_argument(
        "--arms", type=lambda text: text.split(";"), default=list(ARMS), help="names of arms, separated by ;"
    )
    parser.add_argument(
        "settings", nargs="*", default=COMMON, help=f"settings of every run; default: {' '.join(COMMON)}"
    )
    args = parser.parse_args()
    if args.picture and not set(TITLES) <= set(args.arms):
        parser.error(f"the picture needs the arms {' and '.join(TITLES)}: add them to --arms, or leave out --picture")
    args.out.mkdir(parents=True, exist_ok=True)
    folders = {arm: [run(args.out, arm, seed, args.settings) for seed in args.seeds] for arm in args.arms}
    if args.picture:
        args.picture.write_text(picture(folders))
    Console(width=120).print(table_of(folders))


if __name__ == "__main__":
    main()
