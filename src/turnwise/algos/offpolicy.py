"""How far off-policy a batch is: the policy pi that begins to learn against the sampler mu, from samples of mu.

d = log pi - log mu at a token. The tokens come from mu, so that both KL estimates are of KL(mu | pi), the direction
that an engine of its own rounding or stale weights open; KL(pi | mu) would take samples of pi.
"""

import torch
from torch import Tensor

from turnwise.algos.ratios import bounded

OFFPOLICY = (
    "offpolicy_kl_k1",
    "offpolicy_kl_k3",
    "offpolicy_ppl",
    "offpolicy_ppl_sampler",
    "offpolicy_ppl_ratio",
    "offpolicy_chi2_token",
    "offpolicy_chi2_sequence",
)


def offpolicy_metrics(logprobs: Tensor, sampler_logprobs: Tensor, sequences: Tensor, count: int) -> Tensor:
    """Return the numbers of OFFPOLICY, from [M] log-probabilities and each token's sequence (0 to count - 1) each.

    kl_k1 is the mean of -d and kl_k3 that of exp(d) - 1 - d, both of KL(mu | pi). A perplexity is the mean over
    sequences of exp(-mean log-probability), their ratio the mean over sequences of pi's over mu's. chi2 is the mean of
    rho^2 minus 1, with rho = exp(d) of a token or exp(sum of d) of a sequence: an unbiased estimate of chi^2(pi | mu),
    which a small batch can put below 0. Log-ratios are bounded, so that all of it stays finite. Sequences without a
    token are left out of the means over sequences.
    """
    policy, sampler = logprobs.double(), sampler_logprobs.double()
    d = bounded(policy - sampler)
    empty = d.new_zeros(count)
    lengths = empty.index_add(0, sequences, torch.ones_like(d))
    sampled = lengths > 0
    log_ppl, log_ppl_sampler = (
        -empty.index_add(0, sequences, each)[sampled] / lengths[sampled] for each in (policy, sampler)
    )
    rho_sequence = bounded(empty.index_add(0, sequences, d)[sampled]).exp()
    return torch.stack(
        [
            -d.mean(),
            (d.exp() - 1 - d).mean(),
            bounded(log_ppl).exp().mean(),
            bounded(log_ppl_sampler).exp().mean(),
            bounded(log_ppl - log_ppl_sampler).exp().mean(),
            d.exp().square().mean() - 1,
            rho_sequence.square().mean() - 1,
        ]
    )
