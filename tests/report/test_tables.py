import io
import math
from pathlib import Path

from rich.console import Console, RenderableType

from turnwise.report.tables import comparison_table, evaluation_table, models_table, run_table, seeds_table

SUMMARY = {
    "success_before": 0.2617,
    "success_after": 0.9102,
    "interval": [0.87, 0.94],
    "wall_s": 142.2,
    "steps": 120,
    "episodes": 30_720,
    "tokens": 3_100_000,
    "seed": 0,
}

METRICS = {
    "success": 0.5,
    "success_low": 0.4,
    "success_high": 0.6,
    "episodes": 256,
    "dropped": 2,
    "reward": 0.25,
    "turns": 3.21,
    "invalid": 0.125,
    "cut": 0.0,
    "sampled_tokens": 31.4,
}
PAIR = {
    "tasks": 256,
    "success": 0.042,
    "low": -0.01,
    "high": 0.094,
    "interval": "Agresti-Min",
    "p": 0.1234,
    "test": "exact McNemar",
    "reward": -0.05,
    "reward_p": 0.00001,
}


def shown(table: RenderableType, width: int = 140) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines() if line.strip()]


def test_run_table_shows_the_summary() -> None:
    assert shown(run_table(SUMMARY, Path("runs/[red]a"))) == [
        "success before 26.2 %",
        "success after 91.0 %",
        "95 % interval 87.0 to 94.0 %",
        "wall time 2:22",
        "steps 120",
        "episodes 30.7k",
        "sampled tokens 3.1M",
        "run folder runs/[red]a",
    ]


def test_seeds_table_ends_with_the_mean_and_its_interval() -> None:
    afters = (0.91, 0.80, 0.86)
    seeds = [{**SUMMARY, "seed": seed, "success_after": after} for seed, after in enumerate(afters)]
    assert shown(seeds_table(seeds)) == [
        "seed before after 95 % interval wall time episodes",
        "0 26.2 % 91.0 % 87.0 to 94.0 % 2:22 30.7k",
        "1 26.2 % 80.0 % 87.0 to 94.0 % 2:22 30.7k",
        "2 26.2 % 86.0 % 87.0 to 94.0 % 2:22 30.7k",
        "mean 26.2 % 85.7 % 72.0 to 99.3 % over seeds 2:22 30.7k",
    ]


def test_seeds_table_of_one_seed_has_no_mean() -> None:
    assert len(shown(seeds_table([SUMMARY]))) == 2


def test_tables_show_missing_values_as_a_dash() -> None:
    cut = {**SUMMARY, "success_after": None, "interval": None}
    assert "success after -" in shown(run_table(cut, Path("runs/a")))
    assert shown(seeds_table([cut, cut]))[-1] == "mean 26.2 % - - 2:22 30.7k"


def test_run_table_shows_dropped_episodes_and_the_last_failure() -> None:
    dropped = {"dropped": 8, "eval_dropped": 3, "dropped_reason": "the environment's step raised [x] at my_env.py:12"}
    lines = shown(run_table(SUMMARY | dropped, Path("runs/a")))
    assert "dropped episodes 8" in lines and "dropped in evaluations 3" in lines
    assert "last failure the environment's step raised [x] at my_env.py:12" in lines


def test_evaluation_table_lists_one_models_results() -> None:
    passes = {"pass_at_2": 0.6, "pass_at_10": 0.9}
    assert shown(evaluation_table("runs/[red]a", "sokoban, 256 tasks", {**METRICS, **passes})) == [
        "model runs/[red]a",
        "tasks sokoban, 256 tasks",
        "success 50.0 %",
        "95 % interval 40.0 to 60.0 %",
        "pass@2 60.0 %",
        "pass@10 90.0 %",
        "episodes 256",
        "dropped 2",
        "mean return 0.250",
        "turns 3.2",
        "invalid turns 12.5 %",
        "sampled tokens 31.4",
    ]


def test_models_table_has_one_row_per_model() -> None:
    other = {**METRICS, "success": 1.0, "sampled_tokens": math.nan, "dropped": 0}
    assert shown(models_table([("tiny", METRICS), ("gpt", other)], "sokoban")) == [
        "sokoban",
        "model success 95 % interval return turns invalid tokens dropped",
        "tiny 50.0 % 40.0 to 60.0 % 0.250 3.2 12.5 % 31.4 2",
        "gpt 100.0 % 40.0 to 60.0 % 0.250 3.2 12.5 % - 0",
    ]


def test_models_table_fits_a_narrow_terminal() -> None:
    whole = {**METRICS, "dropped": 0, "pass_at_2": 0.6, "pass_at_4": 0.75}
    lines = shown(models_table([("a", whole), ("Qwen2.5-0.5B-Instruct", whole)], "sokoban"), width=80)
    assert lines[1:] == [
        "model success 95 % interval pass@4 return turns invalid tokens",
        "a 50.0 % 40.0 to 60.0 % 75.0 % 0.250 3.2 12.5 % 31.4",
        "Qwen2.5-0.5B-In 50.0 % 40.0 to 60.0 % 75.0 % 0.250 3.2 12.5 % 31.4",
        "struct",
    ]


def test_comparison_table_names_its_tests() -> None:
    assert shown(comparison_table("tiny", [("gpt", PAIR)])) == [
        "vs tiny success 95 % interval p return p tasks",
        "gpt +4.2 -1.0 to +9.4 0.1234 -0.050 < 0.0001 256",
        "success in percentage points; p: exact McNemar, for the return a sign-flip test; interval: Agresti-Min",
    ]
    lines = shown(comparison_table("tiny", [("a", PAIR), ("b", None), ("c", PAIR)]))
    assert lines[2] == "b - - - - - -"
    assert "Holm correction for 2 comparisons" in lines[-1]
