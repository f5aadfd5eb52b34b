"""Policy losses, the value loss, and aggregation over tokens.

A policy loss gives one number per sampled token; the total is the sum over tokens of aggregation weight * token loss.
r = pi / pi_old at a token, A its advantage.

Aggregation weights are computed once over all tokens of an optimizer step, so micro-batches, packing and ranks cannot
change the result. Their names call a trajectory a sequence (seq); one without sampled tokens does not count.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, model_validator

from turnwise.algos.kl import clamp_log_ratio
from turnwise.algos.loss_types import (
    Loss,
    LossInputs,
    LossResult,
    RatioLevel,
    SelectingLoss,
    loss_metrics,
    mean_over,
    sum_over,
    unit_ids,
)
from turnwise.algos.offline import Awr, Dpo
from turnwise.settings.choice import Choice, choices
from turnwise.settings.needs import ONE_PASS, TOKEN_SUMS, Lack, Need
from turnwise.settings.section import NonNegative, Positive

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from turnwise.algos.lazy_torch import torch


class ClippedLoss(Loss):
    """A loss that clips the ratio to [1 - clip_low, 1 + clip_high]."""

    clip_low: NonNegative = 0.2
    """Lower clip range: the ratio is clipped at 1 - clip_low."""
    clip_high: NonNegative = 0.28
    """Upper clip range: the ratio is clipped at 1 + clip_high."""

    @model_validator(mode="after")
    def _check_bound(self) -> ClippedLoss:
        if self.clip_low > 1:
            raise ValueError(
                f"clip_low {self.clip_low} bounds the ratio below 0, which it never reaches. Give at most 1, which "
                "disables the bound."
            )
        return self


class Ppo(ClippedLoss, kind="ppo"):
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) (Schulman et al. 2017; clip-higher: DAPO, Yu et al. 2025).

    Dual clip (Ye et al. 2020): where A < 0 the loss is at most -c A. Otherwise a ratio far above 1 would give an
    unbounded loss, since the clip acts only on the other side.
    """

    dual_clip: Annotated[float, Field(gt=1)] | None = 3.0
    """Bound of the loss for negative advantages, as a multiple of the advantage; none removes it."""

    def compute(self, inputs: LossInputs) -> LossResult:
        return self._clipped(_ratio(inputs), inputs)

    def _clipped(self, ratio: Tensor, inputs: LossInputs) -> LossResult:
        plain = -inputs.advantages * ratio
        clipped = -inputs.advantages * ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        token_loss = torch.maximum(plain, clipped)
        at_bound = torch.zeros_like(token_loss, dtype=torch.bool)
        if self.dual_clip is not None:
            bound = -inputs.advantages * self.dual_clip
            at_bound = (inputs.advantages < 0) & (token_loss > bound)
            token_loss = torch.where(at_bound, bound, token_loss)
        clips = {"clip_fraction": clipped > plain, "clip_fraction_low": at_bound, "ratio": ratio.detach()}
        return LossResult(token_loss=token_loss, metrics=loss_metrics(inputs, **clips))


class Gspo(Ppo, kind="gspo"):
    """ppo with s = exp(mean of log r over the segment) for r, the gradient through the token (Zheng et al. 2025).

    s_t = stop(s) pi / stop(pi): a whole segment (or turn) is clipped, and each token keeps its own advantage. With
    level "token" this is ppo.
    """

    level: RatioLevel = "sequence"
    """Unit that has one ratio; "sequence" is a segment."""

    def compute(self, inputs: LossInputs) -> LossResult:
        units = unit_ids(inputs.segment_ids, inputs.turn_ids, self.level)
        mean = mean_over((inputs.policy_logprobs - inputs.old_logprobs).detach(), units)
        through_token = inputs.policy_logprobs - inputs.policy_logprobs.detach()
        return self._clipped((clamp_log_ratio(mean) + through_token).exp(), inputs)


class Cispo(ClippedLoss, kind="cispo"):
    """-stop(clip(r, 1 - clip_low, 1 + clip_high)) A log pi (MiniMax-M1, 2025).

    The clipped ratio is a weight, so every token keeps a gradient. The clip of ppo removes exactly the rare tokens that
    change a line of reasoning.
    """

    def compute(self, inputs: LossInputs) -> LossResult:
        ratio = _ratio(inputs).detach()
        weight = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        token_loss = -weight * inputs.advantages * inputs.policy_logprobs
        return LossResult(token_loss=token_loss, metrics=loss_metrics(inputs, clip_fraction=weight != ratio))


class Sapo(Loss, kind="sapo"):
    """-(4 / tau) sigmoid(tau (r - 1)) A, tau by the sign of A (soft adaptive policy optimisation, Gao et al. 2025).

    A soft gate instead of the clip: the gradient decays smoothly on both sides of ratio 1, where it equals the policy
    gradient. The temperatures are the paper's; that of negative advantages, whose gradient raises every other token, is
    higher.
    """

    tau_positive: ClassVar[float] = 1.0
    tau_negative: ClassVar[float] = 1.05

    def compute(self, inputs: LossInputs) -> LossResult:
        ratio = _ratio(inputs)
        tau = torch.full_like(ratio, self.tau_negative).masked_fill(inputs.advantages > 0, self.tau_positive)
        token_loss = -inputs.advantages * (tau * (ratio - 1)).sigmoid() * 4 / tau
        return LossResult(token_loss=token_loss, metrics=loss_metrics(inputs))


class GeoMean(Loss, kind="geo_mean"):
    """-A exp(mean over the segment of clipped log r) (geometric-mean policy optimisation, Zhao et al. 2025).

    log r is clipped to [-clip_low, clip_high] where that lowers the objective, by the sign of A. The gradient flows
    through the mean, so a token's advantage moves its whole segment. With the aggregation seq-mean-token-mean this is
    the paper's loss: one term per segment.
    """

    clip_low: NonNegative = 0.2
    """Lower clip range: the log-ratio is clipped at -clip_low."""
    clip_high: NonNegative = 0.28
    """Upper clip range: the log-ratio is clipped at clip_high."""

    def compute(self, inputs: LossInputs) -> LossResult:
        log_ratio = clamp_log_ratio(inputs.policy_logprobs - inputs.old_logprobs)
        clipped = log_ratio.clamp(-self.clip_low, self.clip_high)
        sign = inputs.advantages.sign()
        pessimistic = sign * torch.minimum(sign * log_ratio, sign * clipped)
        segments = unit_ids(inputs.segment_ids, inputs.turn_ids, "sequence")
        ratio = mean_over(pessimistic, segments).exp()
        outside = clipped != log_ratio
        clips = {"clip_fraction": outside & (sign > 0), "clip_fraction_low": outside & (sign < 0)}
        metrics = loss_metrics(inputs, **clips, ratio=ratio.detach())
        return LossResult(token_loss=-inputs.advantages * ratio, metrics=metrics)


class Reinforce(Loss, kind="reinforce"):
    """-A log pi (Williams 1992): the policy gradient itself, for one pass over fresh samples.

    GPG (Chu et al. 2025) is this loss with its own advantage, `gpg`.
    """

    def needs(self) -> list[Need]:
        why = "algo.loss reinforce has no importance ratio, so only the first pass over the samples is on-policy"
        return [Need(ONE_PASS, why, "choose algo.loss ppo")]

    def compute(self, inputs: LossInputs) -> LossResult:
        return LossResult(token_loss=-inputs.advantages * inputs.policy_logprobs, metrics=loss_metrics(inputs))


class Vespo(Loss, kind="vespo"):
    """-stop(phi) A log pi, phi = exp(lambda + k log w - lambda w), w the segment's ratio (VESPO, Shen et al. 2026).

    w is the product of a segment's token ratios, not their mean. phi is 1 at w = 1 and falls to 0 on both sides of its
    maximum at k / lambda: it bounds the variance of w instead of a clip. k and lambda depend on the sign of A; their
    values are the paper's.
    """

    k_positive: ClassVar[float] = 2.0
    lambda_positive: ClassVar[float] = 3.0
    k_negative: ClassVar[float] = 3.0
    lambda_negative: ClassVar[float] = 2.0

    def compute(self, inputs: LossInputs) -> LossResult:
        segments = unit_ids(inputs.segment_ids, inputs.turn_ids, "sequence")
        log_ratio = clamp_log_ratio(inputs.policy_logprobs - inputs.old_logprobs).detach()
        log_w = clamp_log_ratio(sum_over(log_ratio, segments))
        good = inputs.advantages >= 0
        k = torch.full_like(log_w, self.k_negative).masked_fill(good, self.k_positive)
        decay = torch.full_like(log_w, self.lambda_negative).masked_fill(good, self.lambda_positive)
        phi = (decay + k * log_w - decay * log_w.exp()).exp()
        metrics = loss_metrics(inputs, vespo_weight=phi)
        return LossResult(token_loss=-phi * inputs.advantages * inputs.policy_logprobs, metrics=metrics)


CovarianceShare = Annotated[float, Field(gt=0, le=1)]


class ClipCov(ClippedLoss, SelectingLoss, kind="clip_cov"):
    """ppo without dual clip and without gradients on selected tokens (Clip-Cov, Cui et al. 2025, arXiv 2505.22617).

    A few tokens cause most of the entropy loss: likely ones with a high advantage, whose covariance
    (A - mean A)(log pi - mean log pi) is far above the others'. Tokens are selected between low and high, the paper's.
    """

    share: CovarianceShare = 2e-4
    """Share of the trained tokens that is selected, at most; at least one token."""
    low: ClassVar[float] = 1.0
    high: ClassVar[float] = 5.0

    def compute(self, inputs: LossInputs) -> LossResult:
        selected = _selected(inputs)
        result = self._ppo().compute(inputs)
        metrics = result.metrics | {"cov_fraction": selected.to(inputs.advantages.dtype)}
        return LossResult(token_loss=result.token_loss.masked_fill(selected, 0.0), metrics=metrics)

    def select(self, inputs: LossInputs, draws: Tensor) -> Tensor:
        """Select a random share among the tokens in the band that ppo does not clip. [M] bool

        At most max(1, int(share M)) tokens with low < covariance < high: those with the smallest draws.
        """
        clipped = self._ppo().compute(inputs).metrics["clip_fraction"] > 0
        covariance = _covariance(inputs)
        candidates = (covariance > self.low) & (covariance < self.high) & ~clipped
        first = draws.masked_fill(~candidates, torch.inf).argsort(stable=True)
        return _mark(first[: _count(inputs, self.share)], inputs) & candidates

    def _ppo(self) -> Ppo:
        return Ppo(clip_low=self.clip_low, clip_high=self.clip_high, dual_clip=None)


class KlCov(SelectingLoss, kind="kl_cov"):
    """-A r, plus coef |log pi - log pi_old| on the selected tokens (KL-Cov, Cui et al. 2025).

    No clip. The penalty's gradient is 0 where pi = pi_old, so it acts from the second optimizer step on. coef is the
    paper's 1.
    """

    adds_penalty: ClassVar[bool] = True
    share: CovarianceShare = 2e-4
    """Share of the trained tokens that is selected, at most; at least one token."""
    coef: ClassVar[float] = 1.0

    def compute(self, inputs: LossInputs) -> LossResult:
        log_ratio = clamp_log_ratio(inputs.policy_logprobs - inputs.old_logprobs)
        selected = _selected(inputs)
        penalty = torch.where(selected, self.coef * log_ratio.abs(), 0.0)
        metrics = loss_metrics(inputs, cov_fraction=selected)
        return LossResult(token_loss=-inputs.advantages * log_ratio.exp() + penalty, metrics=metrics)

    def select(self, inputs: LossInputs, draws: Tensor) -> Tensor:
        """Select the max(1, int(share M)) tokens with the largest covariance; ties: the first. [M] bool"""
        largest = _covariance(inputs).argsort(descending=True, stable=True)
        return _mark(largest[: _count(inputs, self.share)], inputs)


def _ratio(inputs: LossInputs) -> Tensor:
    return clamp_log_ratio(inputs.policy_logprobs - inputs.old_logprobs).exp()


def _covariance(inputs: LossInputs) -> Tensor:
    """(A - mean A)(log pi - mean log pi) of each token, float64 and without gradient. [M]"""
    advantages, policy_logprobs = inputs.advantages.double(), inputs.policy_logprobs.detach().double()
    return (advantages - advantages.mean()) * (policy_logprobs - policy_logprobs.mean())


def _count(inputs: LossInputs, share: float) -> int:
    return max(1, int(share * len(inputs.policy_logprobs)))


def _mark(tokens: Tensor, inputs: LossInputs) -> Tensor:
    """Indices -> [M] bool."""
    return torch.zeros_like(inputs.policy_logprobs, dtype=torch.bool).index_fill(0, tokens, value=True)


def _selected(inputs: LossInputs) -> Tensor:
    if inputs.selected is None:
        raise ValueError("This loss needs LossInputs.selected, from Loss.select over the whole optimizer step.")
    return inputs.selected


LOSSES: dict[str, type[Loss]] = choices(Ppo, Gspo, Cispo, Sapo, GeoMean, ClipCov, KlCov, Vespo, Reinforce, Awr, Dpo)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """0.5 max((V - R)^2, (clip(V, V_old +- c) - R)^2) per token, and 1 where the clipped term is larger, else 0.

    V itself is clamped to [V_old - c, V_old + c]. V_old + clamp(V - V_old) differs in the last bit, so the clipped term
    would be larger by rounding where nothing was clipped.
    """
    plain = (values - returns).square()
    clipped = (torch.clamp(values, old_values - clip, old_values + clip) - returns).square()
    return 0.5 * torch.maximum(plain, clipped), (clipped > plain).to(values.dtype)


class Aggregation(Choice):
    """Weight of each token's loss in the one loss of an optimizer step."""

    def weights(self, trajectories: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return weights [M] from the trajectory index [M] int64 of each sampled token of the optimizer step."""
        return torch.ones_like(trajectories, dtype=dtype or torch.float32) / self.divisors(trajectories)

    def lacks(self) -> dict[str, Lack]:
        if self.kind == SeqMeanTokenSum.name:
            return {}
        choose = "choose algo.aggregation seq-mean-token-sum"
        return {TOKEN_SUMS: Lack(f"algo.aggregation {self.kind}", "does not", choose)}

    @abstractmethod
    def divisors(self, trajectories: Tensor) -> Tensor | float:
        """Return the number that each token's loss is divided by."""


class TokenMean(Aggregation, kind="token-mean"):
    """Mean over tokens: long trajectories weigh more."""

    def divisors(self, trajectories: Tensor) -> float:
        return max(1, trajectories.shape[0])


class SeqMeanTokenSum(Aggregation, kind="seq-mean-token-sum"):
    """Mean over trajectories of the sum over their tokens."""

    def divisors(self, trajectories: Tensor) -> float:
        return max(1, trajectories.unique().shape[0])


class SeqMeanTokenMean(Aggregation, kind="seq-mean-token-mean"):
    """Mean over trajectories of the mean over their tokens: trajectories weigh the same."""

    def divisors(self, trajectories: Tensor) -> Tensor:
        _, trajectory, lengths = trajectories.unique(return_inverse=True, return_counts=True)
        return lengths[trajectory] * max(1, lengths.shape[0])


class SeqMeanTokenSumNorm(SeqMeanTokenSum, kind="seq-mean-token-sum-norm"):
    """Mean over trajectories of the sum over their tokens / constant_length (Dr. GRPO): no length bias.

    Some systems sum over trajectories instead of averaging; their loss is this one times the number of trajectories.
    """

    constant_length: Positive = 1024
    """Number that a trajectory's sum is divided by, in tokens."""

    def weights(self, trajectories: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return super().weights(trajectories, dtype) / self.constant_length


AGGREGATIONS: dict[str, type[Aggregation]] = choices(TokenMean, SeqMeanTokenSum, SeqMeanTokenMean, SeqMeanTokenSumNorm)
