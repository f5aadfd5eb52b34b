"""What a step says of its own health: spread of rewards, repetition between members, where the gradient comes from."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

NGRAM = 4


Actions = Sequence[int]
"""All ids that a member sampled, turn after turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """How alike the members of groups are; both from 0 to 1, None where no group has two members."""

    copies: float | None
    """Share of members that sampled exactly what another member of their group did."""
    overlap: float | None
    """Share of a member's n-grams that a random other member of its group has too."""


def measure_repetition(groups: Iterable[Sequence[Actions]]) -> Repetition:
    """Means over the groups of two and more members. Linear in the tokens: no pair of members is compared."""
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
    """An n-gram that c of K members have is met by each of them in c - 1 of the K - 1 others."""
    counts = Counter(itertools.chain.from_iterable(_ngrams(member) for member in group))
    total = sum(counts.values())
    return sum(count * (count - 1) for count in counts.values()) / (total * (len(group) - 1)) if total else 0.0


def _ngrams(member: Actions) -> set[tuple[int, ...]]:
    """Those of NGRAM tokens; of a shorter member the whole of it, if there is anything."""
    length = min(NGRAM, len(member))
    return {tuple(member[start : start + length]) for start in range(len(member) - length + 1) if length}


def reward_std_buckets(reward_std: Tensor, num_buckets: int) -> Tensor:
    """[G] which quantile of reward std each group is in: 0 the lowest. Buckets differ by at most one group.

    Of equal groups the first comes first, so that every bucket has its share even when most stds are 0.
    """
    ranks = reward_std.argsort(stable=True).argsort()
    return ranks * num_buckets // max(1, reward_std.shape[0])


def gradient_shares(norms: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, ...]]:
    """Each term's share of its gradient norms by bucket of reward std; all 0 where the term has no gradient.

    `norms` are those of the task, entropy and KL gradients of each bucket alone, without a step taken. A task gradient
    that comes from the lowest buckets is noise; where it vanishes there, entropy and KL are all that moves the policy.
    """
    shares = {}
    for term, of_buckets in norms.items():
        total = sum(of_buckets)
        shares[term] = tuple(norm / total if total > 0 else 0.0 for norm in of_buckets)
    return shares


def explained_variance(values: Tensor, returns: Tensor) -> float | None:
    """1 - var(R - V) / var(R): 1 for a critic that knows, 0 for a constant one; None where R is constant.

    Returns that differ by rounding only count as constant: the ratio would be a number of fourteen digits.
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


def measure_retrieval(
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
