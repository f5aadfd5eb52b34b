import io

from rich.console import Console

from turnwise.report.evaluation_progress import EvaluationProgress


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_evaluation_progress_prints_occasional_lines_to_a_file() -> None:
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


def test_evaluation_progress_is_redrawn_on_a_terminal() -> None:
    out, clock = io.StringIO(), Time()
    console = Console(file=out, width=80, force_terminal=True, force_interactive=True)
    with EvaluationProgress(console, "[b]tiny", total=2, clock=clock) as progress:
        clock.now = 1.0
        progress.add_episode(success=False)
    assert "[b]tiny" in out.getvalue()
    assert "1/2 episodes, success 0.0 %, 0:01 left" in out.getvalue()
