"""Paired comparison of agents on the tasks that both tried: difference, confidence interval and p-value."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from turnwise.core.trajectory import Trajectory
from turnwise.evaluation.episodes import Evaluation
from turnwise.evaluation.statistics import normal_quantile

Tries = Sequence[Trajectory]
Pair = tuple[Tries, Tries]

MCNEMAR, SIGN_FLIP = "exact McNemar", "sign-flip over tasks"
AGRESTI_MIN, BOOTSTRAP = "Agresti-Min", "bootstrap over tasks"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """Second agent minus first, over the tasks that both tried."""

    tasks: int
    success: float
    low: float
    high: float
    """95 % confidence interval of the difference in success."""
    interval: str
    """Method of the interval."""
    p: float
    """p-value of the difference in success."""
    test: str
    """Test that `p` is from."""
    reward: float
    reward_p: float
    """p-value of the difference in mean return, from the sign-flip test."""


def compare_paired(first: Evaluation, second: Evaluation) -> PairedComparison | None:
    """Compare two agents; None if they have no task in common."""
    first_tries, second_tries = first.by_task(), second.by_task()
    pairs = [(tries, second_tries[task]) for task, tries in first_tries.items() if task in second_tries]
    if not pairs:
        return None
    once = all(len(a) == len(b) == 1 for a, b in pairs)
    rewards = [_reward(b) - _reward(a) for a, b in pairs]
    return (_compare_single_tries if once else _compare_several_tries)(pairs, fmean(rewards), sign_flip_test(rewards))


def compare_all(evaluations: Sequence[Evaluation]) -> list[PairedComparison | None]:
    """Compare each agent with the first. The p-values are Holm-corrected for the number of comparisons."""
    comparisons = [compare_paired(evaluations[0], other) for other in evaluations[1:]]
    made = [comparison for comparison in comparisons if comparison is not None]
    ps = holm_correction([comparison.p for comparison in made])
    reward_ps = holm_correction([comparison.reward_p for comparison in made])
    corrected = (replace(comparison, p=p, reward_p=q) for comparison, p, q in zip(made, ps, reward_ps, strict=True))
    return [None if comparison is None else next(corrected) for comparison in comparisons]


def _compare_single_tries(pairs: Sequence[Pair], reward: float, reward_p: float) -> PairedComparison:
    solved = [(a[0].status.succeeded, b[0].status.succeeded) for a, b in pairs]
    only_first, only_second = solved.count((True, False)), solved.count((False, True))
    low, high = agresti_min_interval(only_first, only_second, len(pairs))
    return PairedComparison(
        tasks=len(pairs),
        success=(only_second - only_first) / len(pairs),
        low=low,
        high=high,
        interval=AGRESTI_MIN,
        p=mcnemar_test(only_first, only_second),
        test=MCNEMAR,
        reward=reward,
        reward_p=reward_p,
    )


def _compare_several_tries(pairs: Sequence[Pair], reward: float, reward_p: float) -> PairedComparison:
    differences = [_success(b) - _success(a) for a, b in pairs]
    low, high = bootstrap_interval(differences)
    return PairedComparison(
        tasks=len(pairs),
        success=fmean(differences),
        low=low,
        high=high,
        interval=BOOTSTRAP,
        p=sign_flip_test(differences),
        test=SIGN_FLIP,
        reward=reward,
        reward_p=reward_p,
    )


def _success(tries: Tries) -> float:
    return fmean(trajectory.status.succeeded for trajectory in tries)


def _reward(tries: Tries) -> float:
    return fmean(trajectory.total_reward for trajectory in tries)


EXACT_UP_TO = 16
"""Most differences whose sign combinations are all enumerated: 2^16 = 65,536."""
ROUNDS = 20_000
CHUNK = 1_000_000
"""Random numbers drawn at a time."""


def mcnemar_test(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test (1947).

    2 P(X <= min(only_first, only_second)) for X ~ Binomial(only_first + only_second, 1/2), at most 1. Tasks that both
    or neither agent solved carry no information.
    """
    n, fewer = only_first + only_second, min(only_first, only_second)
    if fewer < 0:
        raise ValueError(f"Numbers of tasks must not be negative: {only_first} and {only_second}.")
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(fewer + 1)) / 2**n)


def agresti_min_interval(only_first: int, only_second: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of the second rate minus the first, over n tasks tried once by both (Agresti and Min 2005).

    The normal interval after half a task is added to each of the four cells. Unlike the plain normal interval, it does
    not shrink to a point if the agents never differ.
    """
    if not 0 <= only_first + only_second <= n:
        raise ValueError(f"{only_first} + {only_second} discordant tasks do not fit into {n} tasks.")
    size, difference = n + 2, only_second - only_first
    spread = math.sqrt(only_first + only_second + 1 - difference**2 / size) / size
    margin = normal_quantile(confidence) * spread
    return max(-1.0, difference / size - margin), min(1.0, difference / size + margin)


def sign_flip_test(differences: Sequence[float], *, seed: int = 0) -> float:
    """Return the two-sided p-value of the mean difference: how often random signs make it at least as large.

    Fisher's randomisation test. Under the null hypothesis, each task's difference has either sign with probability 1/2.
    The test is exact for up to EXACT_UP_TO non-zero differences; beyond that it uses a seeded random sample of signs,
    which includes the observed ones.
    """
    values = np.array([value for value in differences if value != 0], dtype=np.float64)
    if values.size == 0:
        return 1.0
    observed = abs(values.sum()) - 1e-9 * np.abs(values).sum()  # tolerance: equal sums may differ by rounding
    if values.size <= EXACT_UP_TO:
        bits = np.arange(2**values.size)[:, None] >> np.arange(values.size) & 1
        return float(np.mean(np.abs((2 * bits - 1) @ values) >= observed))
    rng, reached = np.random.default_rng(seed), 0
    for rows in _chunks(values.size):
        signs = 2 * rng.integers(0, 2, size=(rows, values.size), dtype=np.int8) - 1
        reached += int(np.sum(np.abs(signs @ values) >= observed))
    return (1 + reached) / (1 + ROUNDS)


def bootstrap_interval(differences: Sequence[float], confidence: float = 0.95, *, seed: int = 0) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean difference, resampling tasks."""
    normal_quantile(confidence)  # rejects an invalid confidence
    if not differences:
        raise ValueError("There are no differences.")
    values, rng = np.array(differences, dtype=np.float64), np.random.default_rng(seed)
    drawn: list[NDArray[np.float64]] = []
    for rows in _chunks(values.size):
        drawn.append(values[rng.integers(0, values.size, size=(rows, values.size))].mean(axis=1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(drawn), [tail, 1 - tail])
    return float(low), float(high)


def holm_correction(ps: Sequence[float]) -> list[float]:
    """Return the p-values adjusted for multiple comparisons (Holm 1979)."""
    order = sorted(range(len(ps)), key=lambda index: ps[index])
    largest, adjusted = 0.0, [0.0] * len(ps)
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[index]))
        adjusted[index] = largest
    return adjusted


def _chunks(size: int) -> Iterator[int]:
    """Yield the number of rows of `size` numbers to draw at a time, ROUNDS in total."""
    most, left = max(1, CHUNK // size), ROUNDS
    while left:
        rows = min(most, left)
        yield rows
        left -= rows
