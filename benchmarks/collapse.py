"""The collapse and what prevents it: the bandit with and without parts of the stability kit, over seeds.

    python benchmarks/collapse.py --out runs/collapse --picture docs/collapse.svg    # of docs/cases.md

Everything but the method's own settings is the same in all runs. Runs that are finished are not run again.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from turnwise.record.curve import nice_ticks, rolling_mean

COMMON = ("--rollout.groups=32", "--rollout.group_size=8", "--train.muon_learning_rate=0.01", "--train.steps=60")
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
PANEL_WIDTH, PANEL_HEIGHT, GAP, LEFT, TOP, BOTTOM = 310, 120, 36, 62, 62, 46
INK, GRID = "#7f8790", "#7f879040"
COLOURS = {"bare": "#e0722a", "kit": "#4c8fd6"}


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


def run(out: Path, arm: str, seed: int) -> Path:
    """The folder of one run; made now unless it is finished."""
    name = f"{arm.replace(' ', '-').replace(',', '').replace('+', 'and')}-{seed}"
    if not (out / name / "summary.json").exists():
        command = [sys.executable, "-m", "turnwise", "train", "bandit", *COMMON, *ARMS[arm]]
        settings = [f"--seed={seed}", f"--record.folder={out}", f"--name={name}", "--system.threads=1"]
        with (out / f"{name}.log").open("w") as log:
            subprocess.run(
                [*command, *settings], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log
            )
    return out / name


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The metrics of the training steps."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "rollout/success" in row]


def last_mean(rows: Sequence[dict[str, Any]], key: str, count: int = 10) -> float:
    return statistics.fmean(row[key] for row in rows[-count:] if row[key] is not None)


def table_of(folders: dict[str, list[Path]]) -> Table:
    table = Table(title="bandit; means of the last 10 steps, by seed")
    for column in ("arm", "success", "reward", "groups without spread", "entropy", "test success after"):
        table.add_column(column, justify="left" if column == "arm" else "right")
    for arm, own in folders.items():
        runs = [rows_of(folder) for folder in own]
        after = [json.loads((folder / "summary.json").read_text())["success_after"] for folder in own]
        keys = ("rollout/success", "rollout/reward", "rollout/zero_std_groups", "train/entropy")
        cells = [" ".join(f"{last_mean(rows, key):.2f}" for rows in runs) for key in keys]
        table.add_row(arm, *cells, " ".join(f"{each:.2f}" for each in after))
    return table


def picture(folders: dict[str, list[Path]]) -> str:
    """Two columns, one an arm; a row a measure; thin lines are seeds, the thick one their mean."""
    width = LEFT + 2 * PANEL_WIDTH + GAP + 16
    height = TOP + len(MEASURES) * (PANEL_HEIGHT + GAP) - GAP + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="collapse on the bandit, and the stability kit" font-family="system-ui, sans-serif" '
        f'font-size="12" fill="{INK}">',
        text(LEFT, 22, "bandit with tiny: equal tasks, episodes and learning rates, three seeds", size=15),
    ]
    for column, (arm, title) in enumerate(TITLES.items()):
        runs = [rows_of(folder) for folder in folders[arm]]
        x = LEFT + column * (PANEL_WIDTH + GAP)
        parts.append(text(x, 48, title, size=13))
        for row, measure in enumerate(MEASURES):
            y = TOP + row * (PANEL_HEIGHT + GAP)
            parts += panel(runs, measure, x, y, COLOURS[arm], labelled=column == 0)
        parts.append(text(x + PANEL_WIDTH / 2, height - 8, "training step", anchor="middle"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def panel(
    runs: Sequence[Sequence[dict[str, Any]]], measure: Measure, x: float, y: float, colour: str, *, labelled: bool
) -> list[str]:
    steps = max(len(rows) for rows in runs)
    parts = []
    for share in (0.0, 0.5, 1.0):
        height = y + PANEL_HEIGHT * (1 - share)
        stroke = GRID if share else INK
        parts.append(f'<line x1="{x}" y1="{height}" x2="{x + PANEL_WIDTH}" y2="{height}" stroke="{stroke}"/>')
        if labelled:
            parts.append(text(x - 8, height + 4, f"{share * measure.top:g}", anchor="end"))
    if labelled:
        middle = y + PANEL_HEIGHT / 2
        turn = f' transform="rotate(-90 16 {middle})"'
        parts.append(f'<text x="16" y="{middle}" text-anchor="middle"{turn}>{measure.label}</text>')
    for tick in nice_ticks(steps, at_most=4):
        parts.append(text(x + PANEL_WIDTH * tick / steps, y + PANEL_HEIGHT + 15, f"{tick:g}", anchor="middle"))
    lines = [rolling_mean([row[measure.key] or 0.0 for row in rows], window=3) for rows in runs]
    mean = [statistics.fmean(values) for values in zip(*lines, strict=True)]
    for values, stroke_width, opacity in [(line, 1.0, 0.5) for line in lines] + [(mean, 2.5, 1.0)]:
        places = " ".join(
            f"{x + PANEL_WIDTH * step / steps:.1f},{y + PANEL_HEIGHT * (1 - min(1.0, value / measure.top)):.1f}"
            for step, value in enumerate(values, start=1)
        )
        parts.append(
            f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="{stroke_width}" '
            f'stroke-opacity="{opacity}" stroke-linejoin="round"/>'
        )
    return parts


def text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{words}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the runs go")
    parser.add_argument("--picture", type=Path, help="where the picture goes")
    parser.add_argument("--seeds", type=lambda given: [int(each) for each in given.split(",")], default=[0, 1, 2])
    parser.add_argument("--arms", type=lambda given: given.split(";"), default=list(ARMS), help="some of them, by ;")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    folders = {arm: [run(given.out, arm, seed) for seed in given.seeds] for arm in given.arms}
    if given.picture:
        given.picture.write_text(picture(folders))
    Console(width=120).print(table_of(folders))


if __name__ == "__main__":
    main()
