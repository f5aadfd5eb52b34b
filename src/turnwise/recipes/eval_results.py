"""What came of an evaluation: tables for the person, a summary and a figure for the folder."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from turnwise.core.task import Split
from turnwise.evaluation.compare import Paired, compare_all
from turnwise.evaluation.run import Evaluation
from turnwise.recipes.eval_contestants import Contestant
from turnwise.report.evaluation_figure import Bar, success_svg
from turnwise.report.evaluation_tables import evaluation_table, paired_table, side_by_side

COMPARED = ("eval.temperature", "eval.top_p", "eval.top_k", "rollout.max_new_tokens", "rollout.max_tokens")
MANY_CUT = 0.1
"""Share of turns that hit their token limit above which that is worth a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    environment: str
    params: Mapping[str, Any]
    split: Split
    tasks: int
    tries: int
    contestants: Sequence[Contestant]
    evaluations: Sequence[Evaluation]

    @property
    def on(self) -> str:
        """On what, in words."""
        return f"{self.environment}, {self.tasks} tasks of the {self.split} split" + (
            f", {self.tries} tries each" if self.tries > 1 else ""
        )

    @property
    def missing(self) -> int:
        return sum(evaluation.errors for evaluation in self.evaluations)

    def rows(self) -> list[tuple[str, dict[str, float]]]:
        both = zip(self.contestants, self.evaluations, strict=True)
        return [(contestant.label, evaluation.metrics()) for contestant, evaluation in both]

    def pairs(self) -> list[tuple[str, Paired | None]]:
        """Each but the first, compared with it."""
        labels = [contestant.label for contestant in self.contestants[1:]]
        return list(zip(labels, compare_all(self.evaluations), strict=True))


def show(results: Results, console: Console) -> None:
    rows = results.rows()
    if len(rows) == 1:
        console.print(evaluation_table(rows[0][0], results.on, rows[0][1]))
    else:
        console.print(side_by_side(rows, results.on))
        pairs = [(label, None if pair is None else asdict(pair)) for label, pair in results.pairs()]
        console.print(paired_table(rows[0][0], pairs))
    for note in notes(results):
        console.print(note, markup=False, soft_wrap=True)


def notes(results: Results) -> Iterator[str]:
    """What a reader of the tables must know to read them right."""
    for key in COMPARED:
        section, _, name = key.partition(".")
        values = [getattr(getattr(each.config, section), name) for each in results.contestants]
        if any(value != values[0] for value in values):
            given = ", ".join(f"{each.label} {value}" for each, value in zip(results.contestants, values, strict=True))
            yield f"{key} differs: {given}"
    for contestant, (label, metrics) in zip(results.contestants, results.rows(), strict=True):
        if metrics["eval/cut"] > MANY_CUT:
            limit = contestant.config.rollout.max_new_tokens
            share = f"{100 * metrics['eval/cut']:.0f} %"
            yield f"{label}: {share} of turns were cut at rollout.max_new_tokens {limit}: raise it to let them finish"
    if results.split == "train":
        yield "these are training tasks: a model that was trained here may have seen them"


def summary(results: Results) -> dict[str, Any]:
    """What `summary.json` holds."""
    return {
        "environment": results.environment,
        "params": dict(results.params),
        "split": results.split,
        "tasks": results.tasks,
        "tries": results.tries,
        "finished": results.missing == 0,
        "models": [
            {"label": each.label, "source": each.source, "endpoint": each.url, **_plain(metrics)}
            for each, (_, metrics) in zip(results.contestants, results.rows(), strict=True)
        ],
        "comparisons": [
            {"first": results.contestants[0].label, "second": label, **asdict(pair)}
            for label, pair in results.pairs()
            if pair is not None
        ],
    }


def _plain(metrics: Mapping[str, float]) -> dict[str, float]:
    return {key.removeprefix("eval/"): value for key, value in metrics.items()}


def figure(results: Results) -> str:
    bars = []
    for label, metrics in results.rows():
        bars.append(
            Bar(
                label=label,
                success=metrics["eval/success"],
                low=metrics["eval/success_low"],
                high=metrics["eval/success_high"],
                best_of=metrics.get(f"eval/pass_at_{results.tries}"),
            )
        )
    return success_svg(bars, results.on, results.tries)
