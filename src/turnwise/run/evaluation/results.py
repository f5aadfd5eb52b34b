"""Results of an evaluation: tables for the terminal, a summary and a figure for the folder."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from turnwise.core.task import Split
from turnwise.evaluation.compare import PairedComparison, compare_all
from turnwise.evaluation.episodes import Evaluation
from turnwise.report.success_chart import SuccessBar, draw_success_chart
from turnwise.report.tables import comparison_table, evaluation_table, models_table
from turnwise.run.evaluation.models import EvaluatedModel

COMPARED = ("eval.temperature", "eval.top_p", "eval.top_k", "rollout.max_new_tokens", "rollout.max_tokens")
"""Settings whose differences between models are printed."""
MAX_CUT_SHARE = 0.1
"""Share of turns cut at their token limit above which a note is printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResults:
    environment: str
    params: Mapping[str, Any]
    split: Split
    tasks: int
    tries: int
    models: Sequence[EvaluatedModel]
    evaluations: Sequence[Evaluation]

    @property
    def title(self) -> str:
        return f"{self.environment}, {self.tasks} tasks of the {self.split} split" + (
            f", {self.tries} tries each" if self.tries > 1 else ""
        )

    @property
    def dropped(self) -> int:
        return sum(evaluation.dropped for evaluation in self.evaluations)

    def rows(self) -> list[tuple[str, dict[str, float]]]:
        both = zip(self.models, self.evaluations, strict=True)
        return [(model.label, evaluation.metrics()) for model, evaluation in both]

    def comparisons(self) -> list[tuple[str, PairedComparison | None]]:
        """Return the label of each model after the first and its comparison with the first."""
        labels = [model.label for model in self.models[1:]]
        return list(zip(labels, compare_all(self.evaluations), strict=True))


def print_results(results: EvaluationResults, console: Console) -> None:
    rows = results.rows()
    if len(rows) == 1:
        console.print(evaluation_table(rows[0][0], results.title, rows[0][1]))
    else:
        console.print(models_table(rows, results.title))
        pairs = [(label, None if pair is None else asdict(pair)) for label, pair in results.comparisons()]
        console.print(comparison_table(rows[0][0], pairs))
    for note in describe_caveats(results):
        console.print(note, markup=False, soft_wrap=True)


def describe_caveats(results: EvaluationResults) -> Iterator[str]:
    """Yield what a reader of the tables must know to interpret them."""
    for key in COMPARED:
        section, _, name = key.partition(".")
        values = [getattr(getattr(model.config, section), name) for model in results.models]
        if any(value != values[0] for value in values):
            pairs = zip(results.models, values, strict=True)
            yield f"{key} differs: {', '.join(f'{model.label} {value}' for model, value in pairs)}"
    for model, (label, metrics) in zip(results.models, results.rows(), strict=True):
        if metrics["cut"] > MAX_CUT_SHARE:
            limit = model.config.rollout.max_new_tokens
            share = f"{100 * metrics['cut']:.0f} %"
            yield f"{label}: {share} of turns were cut at rollout.max_new_tokens {limit}. Raise it to let them finish."
    if results.split == "train":
        yield "These are training tasks: a model that was trained on this environment may have seen them."


def summarise_results(results: EvaluationResults) -> dict[str, Any]:
    """Return the contents of `summary.json`."""
    return {
        "environment": results.environment,
        "params": dict(results.params),
        "split": results.split,
        "tasks": results.tasks,
        "tries": results.tries,
        "finished": results.dropped == 0,
        "models": [
            {"label": model.label, "source": model.source, "endpoint": model.url, **metrics}
            for model, (_, metrics) in zip(results.models, results.rows(), strict=True)
        ],
        "comparisons": [
            {"first": results.models[0].label, "second": label, **asdict(pair)}
            for label, pair in results.comparisons()
            if pair is not None
        ],
    }


def draw_figure(results: EvaluationResults) -> str:
    bars = [
        SuccessBar(
            label=label,
            success=metrics["success"],
            low=metrics["success_low"],
            high=metrics["success_high"],
            pass_at_k=metrics.get(f"pass_at_{results.tries}"),
        )
        for label, metrics in results.rows()
    ]
    return draw_success_chart(bars, results.title, results.tries)
