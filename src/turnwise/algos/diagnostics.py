"""Diagnostics of a step: repetition between members, gradient shares, explained variance, mutual information.

Mutual information shows whether the reasoning depends on the prompt; template collapse keeps entropy high while every
prompt gets the same text. It is computed from a matrix L [R, N] of log-likelihoods of reasoning z_i under prompt x_j
(teacher forced), where column own_i is the prompt that z_i was sampled for:

    matched_i  = L[i, own_i]                        log p(z_i | x_i)
    marginal_i = logsumexp_j L[i, j] - log N        log p(z_i), with equally likely prompts

L holds sums over the tokens, which estimate the mutual information itself, or means, which are not likelihoods of a
mixture but compare reasonings of different lengths.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

NGRAM = 4


Actions = Sequence[int]
"""All sampled ids of a member, turn by turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """Similarity of group members, from 0 to 1; None if no group has two members."""

    copies: float | None
    """Share of members that sampled exactly the same ids as another member of their group."""
    overlap: float | None
    """Share of a member's n-grams that a random other member of its group also has."""


def measure_repetition(groups: Iterable[Sequence[Actions]]) -> Repetition:
    """Average over groups of at least two members. Linear in the tokens: members are not compared in pairs."""
    comparable = [group for group in groups if len(group) > 1]
    if not comparable:
        return Repetition(copies=None, overlap=None)
    return Repetition(
        copies=sum(map(_copies, comparable)) / len(comparable),
        overlap=sum(map(_overlap, comparable)) / len(comparable),
    )


def _copies(group: Sequence[Actions]) -> float:
    counts = Counter(tuple(member) for member in group)
    return sum(count for count in counts.values() if count > 1) / len(group)


def _overlap(group: Sequence[Actions]) -> float:
    """An n-gram of c of K members is shared by each of them with c - 1 of the K - 1 others."""
    counts = Counter(itertools.chain.from_iterable(_ngrams(member) for member in group))
    total = sum(counts.values())
    return sum(count * (count - 1) for count in counts.values()) / (total * (len(group) - 1)) if total else 0.0


def _ngrams(member: Actions) -> set[tuple[int, ...]]:
    """Return the n-grams of NGRAM tokens; for a shorter member all its tokens, if any."""
    length = min(NGRAM, len(member))
    return {tuple(member[start : start + length]) for start in range(len(member) - length + 1) if length}


def reward_std_buckets(reward_std: Tensor, num_buckets: int) -> Tensor:
    """[G] quantile bucket of each group's reward std, 0 the lowest. Bucket sizes differ by at most one group.

    Ties keep their order, so every bucket gets its share even if most stds are 0.
    """
    ranks = reward_std.argsort(stable=True).argsort()
    return ranks * num_buckets // max(1, reward_std.shape[0])


def gradient_shares(norms: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, ...]]:
    """Return each term's gradient norms by bucket of reward std as shares; all 0 if the term has no gradient.

    `norms` are those of the task, entropy and KL gradients of each bucket alone, without an update. A task gradient
    from the lowest buckets is noise; where it vanishes, only entropy and KL move the policy.
    """
    shares = {}
    for term, of_buckets in norms.items():
        total = sum(of_buckets)
        shares[term] = tuple(norm / total if total > 0 else 0.0 for norm in of_buckets)
    return shares


def explained_variance(values: Tensor, returns: Tensor) -> float | None:
    """1 - var(R - V) / var(R): 1 for a perfect critic, 0 for a constant one; None if R is constant.

    Returns that differ only by rounding count as constant; otherwise the ratio would be huge.
    """
    if returns.numel() == 0 or returns.max() - returns.min() <= 1e-5 * returns.abs().max():
        return None
    left = (returns.double() - values.double()).var(correction=0)
    return float(1 - left / returns.double().var(correction=0))


RETRIEVAL_AT = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class MutualInformation:
    information: float
    """mean(matched - marginal), in nats; at most `bound`."""
    bound: float
    """log N: every reasoning identifies its prompt."""
    conditional_entropy: float
    """H(Z|X) = -mean(matched)."""
    entropy: float
    """H(Z) = -mean(marginal)."""
    zscore: float
    """mean((matched - marginal) / (marginal_std + 1e-3)): comparable between models and lengths."""
    marginal_std: float
    """Population standard deviation of marginal_i; smoothed over steps if the previous one is given."""


def mutual_information(
    likelihoods: Tensor,
    own: Tensor,
    *,
    previous_std: float | None = None,
    decay: float = 0.9,
    epsilon: float = 1e-3,
) -> MutualInformation:
    """Estimate mutual information from L [R, N] and the own column [R] of each row.

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
    """Share of reasonings whose own prompt is among the k prompts that make it most likely."""

    accuracy: float
    chance: float

    @property
    def above_chance(self) -> float:
        return self.accuracy - self.chance


def measure_retrieval(likelihoods: Tensor, own: Tensor, prompts: Tensor) -> dict[int, Retrieval]:
    """Retrieval accuracy by k, from L [R, N], the own column [R] of each row and prompt ids [N]; equal ids match."""
    num_prompts = likelihoods.shape[1]
    ranked = likelihoods.argsort(dim=1, descending=True, stable=True)
    right = prompts[None, :] == prompts[own][:, None]  # [R, N]
    hits = right.gather(1, ranked)
    chance = float(right.double().mean())
    retrievals = {}
    for k in RETRIEVAL_AT:
        accuracy = float(hits[:, : min(k, num_prompts)].any(dim=1).double().mean())
        retrievals[k] = Retrieval(accuracy=accuracy, chance=min(1.0, k * chance))
    return retrievals


def information_metrics(measured: MutualInformation, retrievals: dict[int, Retrieval]) -> dict[str, float]:
    """Flatten into metrics."""
    metrics = {
        "mutual_information": measured.information,
        "mutual_information_bound": measured.bound,
        "mutual_information_zscore": measured.zscore,
        "conditional_entropy": measured.conditional_entropy,
        "reasoning_entropy": measured.entropy,
    }
    for k, retrieval in retrievals.items():
        metrics |= {f"retrieval_at_{k}": retrieval.accuracy, f"retrieval_at_{k}_above_chance": retrieval.above_chance}
    return metrics
