"""The collapse and what prevents it: the bandit with and without parts of the stability kit, over seeds.

    python benchmarks/collapse.py --out runs/collapse --picture docs/collapse.svg    # of docs/cases.md

Everything but the method's own settings is the same in all runs; other common settings may stand after `--`, with
another `--out`. Runs that are finished are not run again.
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
    "--train.muon_learning_rate=0.01",
    "--train.steps=60",
    "--train.schedule=constant",
)
BARE = ("--algo.preset=starpo_grpo", "--algo.kl_coef=0")
ARMS: dict[str, tuple[str, ...]] = {
    "bare": BARE,
    "kit": ("--algo.preset=starpo_s",),
    "bare, one update a step": (*BARE, "--train.mini_batch=256"),
    "bare + clip-higher": (*BARE, "--algo.clip_high=0.28"),
    "bare + filter": (*BARE, "--algo.filter=quarter"),
    "bare + KL": ("--algo.preset=starpo_grpo", "--algo.kl_coef=0.1", "--algo.kl_estimator=k2"),
    "critic alone": ("--algo.preset=starpo_ppo", "--algo.kl_coef=0"),
}
"""What differs, by a name of ours; the first two are drawn."""

TITLES = {"bare": "no filter, no KL, symmetric clip", "kit": "the stability kit (starpo_s)"}
COLOURS = {"bare": ORANGE, "kit": BLUE}
GRID = Grid(columns=2, width=310, height=120)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    key: str
    label: str
    top: float


MEASURES = (
    Measure(key="rollout/success", label="success", top=1.0),
    Measure(key="rollout/reward_group_std", label="reward std in groups", top=0.5),
    Measure(key="train/entropy", label="entropy (nats)", top=2.5),
)


def run(out: Path, arm: str, seed: int, settings: Sequence[str]) -> Path:
    """The folder of one run; made now unless it is finished."""
    name = f"{arm.replace(' ', '-').replace(',', '').replace('+', 'and')}-{seed}"
    return train("bandit", out, name, [*settings, *ARMS[arm], f"--seed={seed}"])


def last_mean(rows: Sequence[dict[str, Any]], key: str, count: int = 10) -> float:
    return statistics.fmean(row[key] for row in rows[-count:] if row[key] is not None)


def table_of(folders: dict[str, list[Path]]) -> Table:
    table = Table(title="bandit; means of the last 10 steps, by seed")
    for column in ("arm", "success", "reward", "groups without spread", "entropy", "test success after"):
        table.add_column(column, justify="left" if column == "arm" else "right")
    for arm, own in folders.items():
        runs = [training_rows(folder) for folder in own]
        after = [summary(folder)["success_after"] for folder in own]
        keys = ("rollout/success", "rollout/reward", "rollout/zero_std_groups", "train/entropy")
        cells = [" ".join(f"{last_mean(rows, key):.2f}" for rows in runs) for key in keys]
        table.add_row(arm, *cells, " ".join(f"{each:.2f}" for each in after))
    return table


def picture(folders: dict[str, list[Path]]) -> str:
    """Two columns, one an arm; a row a measure; thin lines are seeds, the thick one their mean."""
    runs = {arm: [training_rows(folder) for folder in folders[arm]] for arm in TITLES}
    panels = [
        Panel(
            runs=[[row[measure.key] or 0.0 for row in rows] for rows in runs[arm]],
            title=title if measure is MEASURES[0] else "",
            label=measure.label,
            top=measure.top,
            colour=COLOURS[arm],
        )
        for measure in MEASURES
        for arm, title in TITLES.items()
    ]
    seeds = f"{len(folders['bare'])} seeds"
    return small_multiples(f"bandit with tiny: equal tasks, episodes and learning rates, {seeds}", panels, GRID)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the runs go")
    parser.add_argument("--picture", type=Path, help="where the picture goes")
    parser.add_argument("--seeds", type=lambda given: [int(each) for each in given.split(",")], default=[0, 1, 2])
    parser.add_argument("--arms", type=lambda given: given.split(";"), default=list(ARMS), help="some of them, by ;")
    parser.add_argument("settings", nargs="*", default=COMMON, help=f"of every run, in place of {' '.join(COMMON)}")
    given = parser.parse_args()
    if given.picture and not set(TITLES) <= set(given.arms):
        parser.error(f"the picture shows {' and '.join(TITLES)}: have both in --arms, or leave out --picture")
    given.out.mkdir(parents=True, exist_ok=True)
    folders = {arm: [run(given.out, arm, seed, given.settings) for seed in given.seeds] for arm in given.arms}
    if given.picture:
        given.picture.write_text(picture(folders))
    Console(width=120).print(table_of(folders))


if __name__ == "__main__":
    main()
