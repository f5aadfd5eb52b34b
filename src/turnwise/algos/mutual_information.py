"""Does the reasoning depend on the prompt? Template collapse keeps entropy high while every prompt gets the same text.

From a matrix L [R, N] of log-likelihoods of reasoning z_i under prompt x_j (teacher forced), where column own_i is the
prompt that z_i was sampled for:

    matched_i  = L[i, own_i]                        log p(z_i | x_i)
    marginal_i = logsumexp_j L[i, j] - log N        log p(z_i), prompts being equally likely

L may hold sums over the tokens, which estimates the mutual information itself, or means, which is no likelihood of a
mixture but compares reasonings of different lengths.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

RETRIEVAL_AT = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class MutualInformation:
    information: float
    """mean(matched - marginal), in nats; at most `bound`."""
    bound: float
    """log N: every reasoning gives its prompt away."""
    conditional_entropy: float
    """H(Z|X) = -mean(matched)."""
    entropy: float
    """H(Z) = -mean(marginal)."""
    zscore: float
    """mean((matched - marginal) / (marginal_std + 1e-3)): comparable between models and lengths."""
    marginal_std: float
    """Of the population; smoothed over steps where a previous one was given."""


def mutual_information(
    likelihoods: Tensor,
    own: Tensor,
    *,
    previous_std: float | None = None,
    decay: float = 0.9,
    epsilon: float = 1e-3,
) -> MutualInformation:
    """From L [R, N] and the own column [R] of each row.

    `previous_std` is the last step's `marginal_std`: the z-score then divides by a moving average and does not jump
    with the spread of one small batch.
    """
    matrix = likelihoods.double()
    bound = math.log(matrix.shape[1])
    matched = matrix.gather(1, own[:, None])[:, 0]
    marginal = matrix.logsumexp(dim=1) - bound
    std = float(marginal.std(correction=0))
    if previous_std is not None:
        std = decay * previous_std + (1 - decay) * std
    information = float((matched - marginal).mean())
    return MutualInformation(
        information=information,
        bound=bound,
        conditional_entropy=-float(matched.mean()),
        entropy=-float(marginal.mean()),
        zscore=information / (std + epsilon),
        marginal_std=std,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    """How often a reasoning's own prompt is among the k prompts under which it is likeliest."""

    accuracy: float
    chance: float

    @property
    def above_chance(self) -> float:
        return self.accuracy - self.chance


def retrieval(
    likelihoods: Tensor, own: Tensor, prompts: Tensor, at: Sequence[int] = RETRIEVAL_AT
) -> dict[int, Retrieval]:
    """By k, from L [R, N], the own column [R] of each row and a number [N] for each prompt: equal ones are matches."""
    num_prompts = likelihoods.shape[1]
    ranked = likelihoods.argsort(dim=1, descending=True, stable=True)
    right = prompts[None, :] == prompts[own][:, None]  # [R, N]
    hits = right.gather(1, ranked)
    chance = float(right.double().mean())
    found = {}
    for k in at:
        accuracy = float(hits[:, : min(k, num_prompts)].any(dim=1).double().mean())
        found[k] = Retrieval(accuracy=accuracy, chance=min(1.0, k * chance))
    return found


def information_metrics(measured: MutualInformation, found: dict[int, Retrieval]) -> dict[str, float]:
    """Flat, for the metrics."""
    metrics = {
        "mutual_information": measured.information,
        "mutual_information_bound": measured.bound,
        "mutual_information_zscore": measured.zscore,
        "conditional_entropy": measured.conditional_entropy,
        "reasoning_entropy": measured.entropy,
    }
    for k, each in found.items():
        metrics |= {f"retrieval_at_{k}": each.accuracy, f"retrieval_at_{k}_above_chance": each.above_chance}
    return metrics
