"""How sure a success rate is."""

import math
from statistics import NormalDist


def wilson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a rate (Wilson 1927): the rates p for which `successes` of `n` is no surprise.

    The ends solve |successes / n - p| = z * sqrt(p * (1 - p) / n). Unlike the normal interval it stays inside [0, 1]
    and is honest at 0 % and 100 %. Nothing tried says nothing: (0, 1).
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, not at {confidence}")
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate = successes / n
    centre = rate + z * z / (2 * n)
    margin = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = 0.0 if successes == 0 else (centre - margin) / scale
    high = 1.0 if successes == n else (centre + margin) / scale
    return low, high


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that k of n tries, drawn without replacement, hold one of the c that succeeded.

    1 - C(n - c, k) / C(n, k): unbiased for the chance that k fresh tries hold a success, which 1 - (1 - c / n)^k
    is not (Chen et al. 2021, "Evaluating Large Language Models Trained on Code").
    """
    if not 0 <= c <= n:
        raise ValueError(f"{c} successes of {n}")
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {k} tries a task, not {n}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)
