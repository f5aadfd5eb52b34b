"""Policy losses, the value loss, and aggregation over tokens.

A policy loss gives one number per sampled token; the total is the sum over tokens of aggregation weight * token loss.
r = pi / pi_old at a token, A its advantage.

Aggregation weights are computed once over all tokens of an optimizer step, so micro-batches, packing and ranks cannot
change the result. A sequence is a trajectory there; one without sampled tokens does not count.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from turnwise.algos.kl import clamp_log_ratio
from turnwise.algos.loss_types import Loss, LossInputs, LossResult, loss_metrics, mean_over, sum_over, unit_ids
from turnwise.algos.offline import awr, dpo, dpo_factors
from turnwise.algos.registry import Function, Registry, declare_traits
from turnwise.core.algorithm import LossParams
from turnwise.core.errors import UserError


def ppo(inputs: LossInputs, params: LossParams) -> LossResult:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) (Schulman et al. 2017; clip-higher: DAPO, Yu et al. 2025).

    Dual clip (Ye et al. 2020): where A < 0 the loss is at most -c A. Otherwise a ratio far above 1 would give an
    unbounded loss, since the clip acts only on the other side.
    """
    return _clipped_surrogate(clamp_log_ratio(inputs.logprobs - inputs.old_logprobs).exp(), inputs, params)


def gspo(inputs: LossInputs, params: LossParams) -> LossResult:
    """ppo with s = exp(mean of log r over the sequence) for r, the gradient through the token (Zheng et al. 2025).

    s_t = stop(s) pi / stop(pi): a whole sequence (or turn) is clipped, and each token keeps its own advantage. With
    ratio_level "token" this is ppo.
    """
    units = unit_ids(inputs.segment_ids, inputs.turn_ids, params.ratio_level)
    mean = mean_over((inputs.logprobs - inputs.old_logprobs).detach(), units)
    through_token = inputs.logprobs - inputs.logprobs.detach()
    return _clipped_surrogate((clamp_log_ratio(mean) + through_token).exp(), inputs, params)


def _clipped_surrogate(ratio: Tensor, inputs: LossInputs, params: LossParams) -> LossResult:
    plain = -inputs.advantages * ratio
    clipped = -inputs.advantages * ratio.clamp(1 - params.clip_low, 1 + params.clip_high)
    token_loss = torch.maximum(plain, clipped)
    at_bound = torch.zeros_like(token_loss, dtype=torch.bool)
    if params.dual_clip is not None:
        bound = -inputs.advantages * params.dual_clip
        at_bound = (inputs.advantages < 0) & (token_loss > bound)
        token_loss = torch.where(at_bound, bound, token_loss)
    clips = {"clip_fraction": clipped > plain, "clip_fraction_low": at_bound, "ratio": ratio.detach()}
    return LossResult(token_loss=token_loss, metrics=loss_metrics(inputs, **clips))


def cispo(inputs: LossInputs, params: LossParams) -> LossResult:
    """-stop(clip(r, 1 - clip_low, 1 + clip_high)) A log pi (MiniMax-M1, 2025).

    The clipped ratio is a weight, so every token keeps a gradient. The clip of ppo removes exactly the rare tokens that
    change a line of reasoning.
    """
    ratio = clamp_log_ratio(inputs.logprobs - inputs.old_logprobs).detach().exp()
    weight = ratio.clamp(1 - params.clip_low, 1 + params.clip_high)
    token_loss = -weight * inputs.advantages * inputs.logprobs
    return LossResult(token_loss=token_loss, metrics=loss_metrics(inputs, clip_fraction=weight != ratio))


def sapo(inputs: LossInputs, params: LossParams) -> LossResult:
    """-(4 / tau) sigmoid(tau (r - 1)) A, tau by the sign of A (soft adaptive policy optimisation, Gao et al. 2025).

    A soft gate instead of the clip: the gradient decays smoothly on both sides of ratio 1, where it equals the policy
    gradient.
    """
    ratio = clamp_log_ratio(inputs.logprobs - inputs.old_logprobs).exp()
    tau = torch.full_like(ratio, params.tau_negative).masked_fill(inputs.advantages > 0, params.tau_positive)
    token_loss = -inputs.advantages * (tau * (ratio - 1)).sigmoid() * 4 / tau
    return LossResult(token_loss=token_loss, metrics=loss_metrics(inputs))


def geo_mean(inputs: LossInputs, params: LossParams) -> LossResult:
    """-A exp(mean over the sequence of clipped log r) (geometric-mean policy optimisation, Zhao et al. 2025).

    log r is clipped to [-clip_low, clip_high] where that lowers the objective, by the sign of A. The gradient flows
    through the mean, so a token's advantage moves its whole sequence. With the aggregation seq-mean-token-mean this is
    the paper's loss: one term per sequence.
    """
    log_ratio = clamp_log_ratio(inputs.logprobs - inputs.old_logprobs)
    clipped = log_ratio.clamp(-params.clip_low, params.clip_high)
    sign = inputs.advantages.sign()
    pessimistic = sign * torch.minimum(sign * log_ratio, sign * clipped)
    sequences = unit_ids(inputs.segment_ids, inputs.turn_ids, "sequence")
    ratio = mean_over(pessimistic, sequences).exp()
    outside = clipped != log_ratio
    clips = {"clip_fraction": outside & (sign > 0), "clip_fraction_low": outside & (sign < 0), "ratio": ratio.detach()}
    return LossResult(token_loss=-inputs.advantages * ratio, metrics=loss_metrics(inputs, **clips))


def reinforce(inputs: LossInputs, params: LossParams) -> LossResult:
    """-A log pi (Williams 1992): the policy gradient itself, for one pass over fresh samples.

    GPG (Chu et al. 2025) uses the same loss with its own advantage, `gpg`.
    """
    return LossResult(token_loss=-inputs.advantages * inputs.logprobs, metrics=loss_metrics(inputs))


def vespo(inputs: LossInputs, params: LossParams) -> LossResult:
    """-stop(phi) A log pi, phi = exp(lambda + k log w - lambda w), w the sequence's ratio (VESPO, Shen et al. 2026).

    w is the product of a segment's token ratios, not their mean. phi is 1 at w = 1 and falls to 0 on both sides of its
    maximum at k / lambda: it bounds the variance of w instead of a clip. k and lambda depend on the sign of A.
    """
    sequences = unit_ids(inputs.segment_ids, inputs.turn_ids, "sequence")
    log_ratio = clamp_log_ratio(inputs.logprobs - inputs.old_logprobs).detach()
    log_w = clamp_log_ratio(sum_over(log_ratio, sequences))
    good = inputs.advantages >= 0
    k = torch.full_like(log_w, params.vespo_k_negative).masked_fill(good, params.vespo_k_positive)
    decay = torch.full_like(log_w, params.vespo_lambda_negative).masked_fill(good, params.vespo_lambda_positive)
    phi = (decay + k * log_w - decay * log_w.exp()).exp()
    metrics = loss_metrics(inputs, vespo_weight=phi)
    return LossResult(token_loss=-phi * inputs.advantages * inputs.logprobs, metrics=metrics)


def clip_cov(inputs: LossInputs, params: LossParams) -> LossResult:
    """ppo without dual clip and without gradients on selected tokens (Clip-Cov, Cui et al. 2025, arXiv 2505.22617).

    A few tokens cause most of the entropy loss: likely ones with a high advantage, whose covariance
    (A - mean A)(log pi - mean log pi) is far above the others'. See `select_band`.
    """
    selected = _selected(inputs)
    result = ppo(inputs, params.model_copy(update={"dual_clip": None}))
    metrics = result.metrics | {"cov_fraction": selected.to(inputs.advantages.dtype)}
    return LossResult(token_loss=result.token_loss.masked_fill(selected, 0.0), metrics=metrics)


def select_band(inputs: LossInputs, params: LossParams, draws: Tensor) -> Tensor:
    """Select tokens for clip_cov: a random share, among tokens in the band that ppo does not clip. [M] bool

    At most max(1, int(cov_share M)) tokens with cov_low < covariance < cov_high: those with the smallest draws.
    """
    clipped = ppo(inputs, params.model_copy(update={"dual_clip": None})).metrics["clip_fraction"] > 0
    covariance = _covariance(inputs)
    candidates = (covariance > params.cov_low) & (covariance < params.cov_high) & ~clipped
    first = draws.masked_fill(~candidates, torch.inf).argsort(stable=True)
    return _mark(first[: _count(inputs, params)], inputs) & candidates


def kl_cov(inputs: LossInputs, params: LossParams) -> LossResult:
    """-A r, plus cov_kl_coef |log pi - log pi_old| on the selected tokens (KL-Cov, Cui et al. 2025).

    No clip. The penalty's gradient is 0 where pi = pi_old, so it acts from the second optimizer step on. See
    `select_top`.
    """
    log_ratio = clamp_log_ratio(inputs.logprobs - inputs.old_logprobs)
    selected = _selected(inputs)
    penalty = torch.where(selected, params.cov_kl_coef * log_ratio.abs(), 0.0)
    metrics = loss_metrics(inputs, cov_fraction=selected)
    return LossResult(token_loss=-inputs.advantages * log_ratio.exp() + penalty, metrics=metrics)


def select_top(inputs: LossInputs, params: LossParams, draws: Tensor) -> Tensor:
    """Select the max(1, int(cov_share M)) tokens with the largest covariance for kl_cov; ties: the first. [M] bool"""
    return _mark(_covariance(inputs).argsort(descending=True, stable=True)[: _count(inputs, params)], inputs)


def _covariance(inputs: LossInputs) -> Tensor:
    """(A - mean A)(log pi - mean log pi) of each token, float64 and without gradient. [M]"""
    advantages, logprobs = inputs.advantages.double(), inputs.logprobs.detach().double()
    return (advantages - advantages.mean()) * (logprobs - logprobs.mean())


def _count(inputs: LossInputs, params: LossParams) -> int:
    return max(1, int(params.cov_share * len(inputs.logprobs)))


def _mark(tokens: Tensor, inputs: LossInputs) -> Tensor:
    """Indices -> [M] bool."""
    return torch.zeros_like(inputs.logprobs, dtype=torch.bool).index_fill(0, tokens, value=True)


def _selected(inputs: LossInputs) -> Tensor:
    if inputs.selected is None:
        raise ValueError("This loss needs LossInputs.selected, from Loss.select over the whole optimizer step.")
    return inputs.selected


def loss(**traits: bool) -> Callable[[Function], Function]:
    """Declare what a loss function of yours does: `@tw.loss(adds_penalty=True)` if it is nonzero for advantage 0."""
    return declare_traits(traits, ("adds_penalty",), "loss")


def _from_user_function(function: Callable[..., Any], **traits: Any) -> Loss:
    def compute(inputs: LossInputs, params: LossParams) -> LossResult:
        found = function(inputs, params)
        result = LossResult(token_loss=found, metrics=loss_metrics(inputs)) if isinstance(found, Tensor) else found
        if not isinstance(result, LossResult):
            raise UserError(f"algo.loss returned {type(found).__name__}: return a tensor [M] or LossResult")
        if result.token_loss.shape != inputs.logprobs.shape:
            shapes = f"{list(result.token_loss.shape)} instead of {list(inputs.logprobs.shape)}"
            raise UserError(f"algo.loss returned the shape {shapes}: one loss per token, not yet averaged")
        if inputs.logprobs.requires_grad and not result.token_loss.requires_grad:
            raise UserError("algo.loss returned a loss without a gradient: compute it from inputs.logprobs")
        return result

    return Loss(compute=compute, **traits)


LOSSES: Registry[Loss] = Registry(
    "algo.loss",
    _from_user_function,
    {
        "ppo": Loss(compute=ppo, reads=("clip_low", "clip_high", "dual_clip")),
        "gspo": Loss(compute=gspo, reads=("clip_low", "clip_high", "dual_clip", "ratio_level")),
        "cispo": Loss(compute=cispo, reads=("clip_low", "clip_high")),
        "sapo": Loss(compute=sapo, reads=("tau_positive", "tau_negative")),
        "geo_mean": Loss(compute=geo_mean, reads=("clip_low", "clip_high")),
        "clip_cov": Loss(
            compute=clip_cov, reads=("clip_low", "clip_high", "cov_share", "cov_low", "cov_high"), select=select_band
        ),
        "kl_cov": Loss(compute=kl_cov, reads=("cov_share", "cov_kl_coef"), select=select_top, adds_penalty=True),
        "vespo": Loss(
            compute=vespo,
            reads=("vespo_k_positive", "vespo_lambda_positive", "vespo_k_negative", "vespo_lambda_negative"),
        ),
        "gpg": Loss(compute=reinforce),
        "reinforce": Loss(compute=reinforce),
        "awr": Loss(compute=awr, reads=("awr_beta", "awr_max_weight"), adds_penalty=True),
        "dpo": Loss(compute=dpo, reads=("dpo_beta", "dpo_sft_coef"), weigh=dpo_factors),
    },
)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """0.5 max((V - R)^2, (clip(V, V_old +- c) - R)^2) per token, and 1 where the clipped term is larger, else 0.

    V itself is clamped to [V_old - c, V_old + c]. V_old + clamp(V - V_old) differs in the last bit, so the clipped term
    would be larger by rounding where nothing was clipped.
    """
    plain = (values - returns).square()
    clipped = (torch.clamp(values, old_values - clip, old_values + clip) - returns).square()
    return 0.5 * torch.maximum(plain, clipped), (clipped > plain).to(values.dtype)


class Aggregation(Protocol):
    def __call__(self, sequences: Tensor, constant_length: float, dtype: torch.dtype = torch.float32) -> Tensor:
        """Weights [M] from the trajectory index [M] int64 of each sampled token of the optimizer step."""
        ...


def token_mean(sequences: Tensor, constant_length: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Mean over tokens: long trajectories weigh more."""
    return _ones(sequences, dtype) / max(1, sequences.shape[0])


def seq_mean_token_sum(sequences: Tensor, constant_length: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Mean over trajectories of the sum over their tokens."""
    return _ones(sequences, dtype) / max(1, sequences.unique().shape[0])


def seq_mean_token_mean(sequences: Tensor, constant_length: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Mean over trajectories of the mean over their tokens: trajectories weigh the same."""
    _, sequence, lengths = sequences.unique(return_inverse=True, return_counts=True)
    return _ones(sequences, dtype) / (lengths[sequence] * max(1, lengths.shape[0]))


def seq_mean_token_sum_norm(sequences: Tensor, constant_length: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Mean over trajectories of the sum over their tokens / constant_length (Dr. GRPO): no length bias.

    Some systems sum over trajectories instead of averaging; their loss is this one times the number of trajectories.
    """
    return seq_mean_token_sum(sequences, constant_length, dtype) / constant_length


def _ones(sequences: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.ones_like(sequences, dtype=dtype)


AGGREGATIONS: dict[str, Aggregation] = {
    "token-mean": token_mean,
    "seq-mean-token-sum": seq_mean_token_sum,
    "seq-mean-token-mean": seq_mean_token_mean,
    "seq-mean-token-sum-norm": seq_mean_token_sum_norm,
}
