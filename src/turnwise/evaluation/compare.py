"""Two agents on the tasks that both tried: who is better, by how much, and whether that could be luck."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from turnwise.core.trajectory import Trajectory
from turnwise.evaluation.paired import bootstrap_interval, holm, matched_interval, mcnemar, sign_flip
from turnwise.evaluation.run import Evaluation

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
