"""The metrics that people look at first, in the order in which they do, with how their numbers are written."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.record.numbers import count, decimal, length, percent

Points = list[tuple[float, float]]
LARGEST = 1e100
"""Beyond, differences of numbers may be infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    label: str
    key: str
    write: Callable[[float | None], str]
    share: bool = False
    """Always between 0 and 1, and drawn so, that two pictures can be compared."""


FIRST = (
    Metric(label="success", key="rollout/success", write=percent, share=True),
    Metric(label="reward", key="rollout/reward", write=decimal),
    Metric(label="loss", key="train/loss", write=decimal),
    Metric(label="entropy", key="train/entropy", write=decimal),
    Metric(label="KL to the reference", key="train/kl", write=decimal),
    Metric(label="KL of a step", key="train/approx_kl", write=decimal),
    Metric(label="response tokens", key="rollout/response_tokens", write=length),
    Metric(label="turns", key="rollout/turns", write=length),
    Metric(label="gradient norm", key="train/grad_norm", write=decimal),
    Metric(label="tokens per second", key="time/tokens_per_s", write=count),
    Metric(label="clip fraction", key="train/clip_fraction", write=percent),
    Metric(label="sampler-learner mismatch", key="train/mismatch", write=decimal),
    Metric(label="KL(sampler | learner), k3", key="train/offpolicy_kl_k3", write=decimal),
    Metric(label="chi-squared of sequences", key="train/offpolicy_chi2_sequence", write=decimal),
    Metric(label="invalid turns", key="rollout/invalid", write=percent),
    Metric(label="groups that fare alike", key="rollout/zero_std_groups", write=percent),
)


def number_of(value: Any) -> float | None:
    """A number of a row that can be drawn; None for text, null, and the words that stand for NaN and infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if abs(found) <= LARGEST else None


def points_of(rows: Sequence[Mapping[str, Any]], key: str) -> Points:
    """(step, value) of the rows that have both."""
    pairs = ((number_of(row.get("step")), number_of(row.get(key))) for row in rows)
    return [(step, value) for step, value in pairs if step is not None and value is not None]


def present(rows: Sequence[Mapping[str, Any]], metrics: Sequence[Metric] = FIRST) -> list[tuple[Metric, Points]]:
    """Those of the metrics that a run has, with their points."""
    found = [(metric, points_of(rows, metric.key)) for metric in metrics]
    return [(metric, points) for metric, points in found if points]
