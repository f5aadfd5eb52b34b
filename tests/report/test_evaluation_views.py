"""Tables, figure and progress of an evaluation."""

import io
import math
from xml.etree import ElementTree

import pytest
from rich.console import Console, RenderableType

from turnwise.report.evaluation_progress import EvaluationProgress
from turnwise.report.formatting import format_p_value
from turnwise.report.success_chart import SuccessBar, draw_success_chart
from turnwise.report.tables import comparison_table, evaluation_table, models_table

METRICS = {
    "eval/success": 0.5,
    "eval/success_low": 0.4,
    "eval/success_high": 0.6,
    "eval/episodes": 256,
    "eval/errors": 2,
    "eval/reward": 0.25,
    "eval/turns": 3.21,
    "eval/invalid": 0.125,
    "eval/cut": 0.0,
    "eval/sampled_tokens": 31.4,
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
    assert isinstance(console.file, io.StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines() if line.strip()]


def test_one_agent_is_told_from_top_to_bottom() -> None:
    passes = {"eval/pass_at_2": 0.6, "eval/pass_at_10": 0.9}
    assert shown(evaluation_table("runs/[red]a", "sokoban, 256 tasks", {**METRICS, **passes})) == [
        "model runs/[red]a",
        "tasks sokoban, 256 tasks",
        "success 50.0 %",
        "95 % interval 40.0 to 60.0 %",
        "pass@2 60.0 %",
        "pass@10 90.0 %",
        "episodes 256",
        "broken episodes 2",
        "mean return 0.250",
        "turns 3.2",
        "invalid turns 12.5 %",
        "sampled tokens 31.4",
    ]


def test_several_stand_side_by_side() -> None:
    other = {**METRICS, "eval/success": 1.0, "eval/sampled_tokens": math.nan, "eval/errors": 0}
    assert shown(models_table([("tiny", METRICS), ("gpt", other)], "sokoban")) == [
        "sokoban",
        "model success 95 % interval return turns invalid tokens broken",
        "tiny 50.0 % 40.0 to 60.0 % 0.250 3.2 12.5 % 31.4 2",
        "gpt 100.0 % 40.0 to 60.0 % 0.250 3.2 12.5 % - 0",
    ]


def test_what_never_broke_is_not_told_and_names_stay_readable_in_a_narrow_terminal() -> None:
    whole = {**METRICS, "eval/errors": 0, "eval/pass_at_2": 0.6, "eval/pass_at_4": 0.75}
    lines = shown(models_table([("a", whole), ("Qwen2.5-0.5B-Instruct", whole)], "sokoban"), width=80)
    assert lines[1:] == [
        "model success 95 % interval pass@4 return turns invalid tokens",
        "a 50.0 % 40.0 to 60.0 % 75.0 % 0.250 3.2 12.5 % 31.4",
        "Qwen2.5-0.5B-In 50.0 % 40.0 to 60.0 % 75.0 % 0.250 3.2 12.5 % 31.4",
        "struct",
    ]


def test_comparisons_say_by_which_test() -> None:
    assert shown(comparison_table("tiny", [("gpt", PAIR)])) == [
        "against tiny success 95 % interval p return p tasks",
        "gpt +4.2 -1.0 to +9.4 0.1234 -0.050 < 0.0001 256",
        "points of success; p: exact McNemar, of the return sign-flip over tasks; interval: Agresti-Min",
    ]
    lines = shown(comparison_table("tiny", [("a", PAIR), ("b", None), ("c", PAIR)]))
    assert lines[2] == "b - - - - - -"
    assert "raised by Holm's rule for 2 comparisons" in lines[-1]


@pytest.mark.parametrize(("p", "text"), [(1.0, "1.0000"), (0.05, "0.0500"), (0.00009, "< 0.0001")])
def test_probabilities(p: float, text: str) -> None:
    assert format_p_value(p) == text


def circles(svg: str) -> list[dict[str, str]]:
    return [each.attrib for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("circle")]


def test_the_figure_is_svg_with_a_point_and_an_interval_for_each() -> None:
    bars = [
        SuccessBar(label="a", success=0.0, low=0.0, high=0.2),
        SuccessBar(label="b" * 60, success=1.0, low=0.8, high=1.0),
    ]
    svg = draw_success_chart(bars, 'sokoban "&<\x00')
    legend, first, second = circles(svg)
    assert float(first["cx"]) < float(second["cx"])
    assert float(first["cy"]) < float(second["cy"])
    assert "..." + "b" * 25 in svg
    assert "pass@" not in svg
    assert float(legend["cy"]) < float(first["cy"])


def test_several_tries_draw_a_ring_for_the_best_of_them() -> None:
    svg = draw_success_chart([SuccessBar(label="a", success=0.5, low=0.4, high=0.6, pass_at_k=0.75)], "t", tries=4)
    point, ring = circles(svg)[2:]
    assert float(point["cx"]) < float(ring["cx"])
    assert "pass@4" in svg


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_progress_in_a_file_is_a_line_now_and_then() -> None:
    clock, out = Time(), io.StringIO()
    view = EvaluationProgress(Console(file=out, width=100), "tiny", total=100, done=10, solved=5, clock=clock)
    with view as progress:
        clock.now = 11.0
        progress.set_phase("warm-up", 3, 60)
        for _ in range(30):
            clock.now += 1
            progress.add_episode(success=True)
    assert out.getvalue().splitlines() == [
        "tiny: warm-up 3/60",
        "tiny: 20/100 episodes, success 75.0 %, 1:20 left",
        "tiny: 30/100 episodes, success 83.3 %, 1:10 left",
        "tiny: 40/100 episodes, success 87.5 %, 1:00 left",
    ]


def test_progress_on_a_terminal_is_redrawn() -> None:
    out, clock = io.StringIO(), Time()
    console = Console(file=out, width=80, force_terminal=True, force_interactive=True)
    with EvaluationProgress(console, "[b]tiny", total=2, clock=clock) as progress:
        clock.now = 1.0
        progress.add_episode(success=False)
    assert "[b]tiny" in out.getvalue()
    assert "1/2 episodes, success 0.0 %, 0:01 left" in out.getvalue()
