"""Two agents on the tasks that both tried: who is better, by how much, and whether that could be luck."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from turnwise.core.trajectory import Trajectory
from turnwise.evaluation.episodes import Evaluation
from turnwise.evaluation.statistics import standard_normal

Tries = Sequence[Trajectory]
Pair = tuple[Tries, Tries]

MCNEMAR, SIGN_FLIP = "exact McNemar", "sign-flip over tasks"
AGRESTI_MIN, BOOTSTRAP = "Agresti-Min", "bootstrap over tasks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """How much better the second agent is than the first, over the tasks that both tried."""

    tasks: int
    success: float
    low: float
    high: float
    """95 % interval of the difference in success, by `interval`."""
    interval: str
    p: float
    """That the difference in success is luck, by `test`."""
    test: str
    reward: float
    reward_p: float
    """That the difference in mean return is luck, by the sign-flip test."""


def compare(first: Evaluation, second: Evaluation) -> Paired | None:
    """None where no task was tried by both."""
    ours, theirs = first.by_task(), second.by_task()
    pairs = [(ours[task], theirs[task]) for task in ours if task in theirs]
    if not pairs:
        return None
    once = all(len(a) == len(b) == 1 for a, b in pairs)
    rewards = [_reward(b) - _reward(a) for a, b in pairs]
    return (_once if once else _several)(pairs, fmean(rewards), sign_flip(rewards))


def compare_all(evaluations: Sequence[Evaluation]) -> list[Paired | None]:
    """Each with the first. With several, every p is raised by Holm's rule for as many comparisons."""
    found = [compare(evaluations[0], other) for other in evaluations[1:]]
    made = [pair for pair in found if pair is not None]
    ps = iter(zip(holm([pair.p for pair in made]), holm([pair.reward_p for pair in made]), strict=True))
    return [None if pair is None else _with_ps(pair, *next(ps)) for pair in found]


def _with_ps(pair: Paired, p: float, reward_p: float) -> Paired:
    return replace(pair, p=p, reward_p=reward_p)


def _once(pairs: Sequence[Pair], reward: float, reward_p: float) -> Paired:
    solved = [(a[0].status.succeeded, b[0].status.succeeded) for a, b in pairs]
    only_first, only_second = solved.count((True, False)), solved.count((False, True))
    low, high = matched_interval(only_first, only_second, len(pairs))
    return Paired(
        tasks=len(pairs),
        success=(only_second - only_first) / len(pairs),
        low=low,
        high=high,
        interval=AGRESTI_MIN,
        p=mcnemar(only_first, only_second),
        test=MCNEMAR,
        reward=reward,
        reward_p=reward_p,
    )


def _several(pairs: Sequence[Pair], reward: float, reward_p: float) -> Paired:
    differences = [_success(b) - _success(a) for a, b in pairs]
    low, high = bootstrap_interval(differences)
    return Paired(
        tasks=len(pairs),
        success=fmean(differences),
        low=low,
        high=high,
        interval=BOOTSTRAP,
        p=sign_flip(differences),
        test=SIGN_FLIP,
        reward=reward,
        reward_p=reward_p,
    )


def _success(tries: Tries) -> float:
    return fmean(trajectory.status.succeeded for trajectory in tries)


def _reward(tries: Tries) -> float:
    return fmean(trajectory.total_reward for trajectory in tries)


EXACT_UP_TO = 16
"""Differences whose signs are all tried out: 65,536 ways."""
ROUNDS = 20_000
CHUNK = 1_000_000
"""Random numbers drawn at once."""


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p of McNemar's test (1947): of the tasks that one agent alone solved, is each the fair half?

    2 * P(X <= min) for X ~ Binomial(n, 1/2), at most 1; tasks that both or neither solved say nothing about it.
    """
    n, fewer = only_first + only_second, min(only_first, only_second)
    if fewer < 0:
        raise ValueError(f"{only_first} and {only_second} tasks")
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(fewer + 1)) / 2**n)


def matched_interval(only_first: int, only_second: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Of the second rate minus the first, over n tasks that both tried once (Agresti and Min 2005).

    The normal interval after half a task is added to each of the four cells: unlike the plain one it does not shrink
    to nothing where the two agents never differ.
    """
    if not 0 <= only_first + only_second <= n:
        raise ValueError(f"{only_first} and {only_second} tasks of {n}")
    size, difference = n + 2, only_second - only_first
    spread = math.sqrt(only_first + only_second + 1 - difference**2 / size) / size
    margin = standard_normal(confidence) * spread
    return max(-1.0, difference / size - margin), min(1.0, difference / size + margin)


def sign_flip(differences: Sequence[float], *, seed: int = 0) -> float:
    """The two-sided p that the mean difference is luck: how often random signs make it at least as large.

    Fisher's randomisation test: were the agents equal, each task's difference would have either sign as easily. With
    few differences that are not 0 it is exact, over all signs; with more, over a seeded sample that holds the one seen.
    """
    values = np.array([value for value in differences if value != 0], dtype=np.float64)
    if values.size == 0:
        return 1.0
    seen = abs(values.sum()) - 1e-9 * np.abs(values).sum()  # float noise must not part equal sums
    if values.size <= EXACT_UP_TO:
        ways = np.arange(2**values.size)[:, None] >> np.arange(values.size) & 1
        return float(np.mean(np.abs((2 * ways - 1) @ values) >= seen))
    rng, reached = np.random.default_rng(seed), 0
    for rows in _chunks(values.size):
        signs = 2 * rng.integers(0, 2, size=(rows, values.size), dtype=np.int8) - 1
        reached += int(np.sum(np.abs(signs @ values) >= seen))
    return (1 + reached) / (1 + ROUNDS)


def bootstrap_interval(differences: Sequence[float], confidence: float = 0.95, *, seed: int = 0) -> tuple[float, float]:
    """Of the mean difference: what it would have been with other tasks, drawn from these again and again."""
    standard_normal(confidence)  # refuses a confidence that is none
    if not differences:
        raise ValueError("no differences")
    values, rng = np.array(differences, dtype=np.float64), np.random.default_rng(seed)
    drawn: list[NDArray[np.float64]] = []
    for rows in _chunks(values.size):
        drawn.append(values[rng.integers(0, values.size, size=(rows, values.size))].mean(axis=1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(drawn), [tail, 1 - tail])
    return float(low), float(high)


def holm(ps: Sequence[float]) -> list[float]:
    """The p of several comparisons, each raised so that one false alarm among all stays as rare (Holm 1979)."""
    order = sorted(range(len(ps)), key=lambda index: ps[index])
    raised, adjusted = 0.0, [0.0] * len(ps)
    for rank, index in enumerate(order):
        raised = max(raised, min(1.0, (len(ps) - rank) * ps[index]))
        adjusted[index] = raised
    return adjusted


def _chunks(size: int) -> Iterator[int]:
    """How many rows of `size` numbers to draw at once, until all rounds are drawn."""
    most, left = max(1, CHUNK // size), ROUNDS
    while left:
        rows = min(most, left)
        yield rows
        left -= rows
