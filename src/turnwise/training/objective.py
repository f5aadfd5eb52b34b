"""Objective of the learner: policy loss with KL and entropy terms, and value loss."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.algos.critics import TokenCriticSettings
from turnwise.algos.kl import KlEstimator
from turnwise.algos.loss_types import Loss, LossInputs, compute_loss
from turnwise.algos.losses import value_loss
from turnwise.algos.off_policy import (
    OFF_POLICY_METRICS,
    Correction,
    NoCorrection,
    NoRejection,
    apply_correction,
    apply_rejection,
    compute_off_policy_metrics,
)
from turnwise.algos.settings import AlgoConfig
from turnwise.core.samples import TrainBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    algo: AlgoConfig
    critic_settings: TokenCriticSettings | None
    """None without a critic of tokens."""
    kl_estimator: KlEstimator

    @property
    def loss(self) -> Loss:
        return self.algo.loss

    @property
    def correction(self) -> Correction:
        return self.algo.correction

    def policy(
        self, batch: TrainBatch, policy_logprobs: Tensor, entropy: Tensor, *, kl_coef: float, entropy_coef: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the policy loss and metrics of each token [M]. The loss is a sum: the weights aggregate it.

        Tokens that a correction drops or that are rejected have no part in it, but in the metrics.
        """
        counts = torch.tensor(batch.batch.counts)
        inputs = LossInputs(
            policy_logprobs=policy_logprobs,
            old_logprobs=batch.old_logprobs,
            sampler_logprobs=batch.sampler_logprobs,
            advantages=batch.advantages,
            segment_ids=torch.repeat_interleave(counts).to(policy_logprobs.device),
            turn_ids=batch.turn_ids,
            selected=batch.selected,
            factors=batch.factors,
        )
        result = compute_loss(self.loss, inputs)
        dropped = torch.zeros_like(inputs.turn_ids, dtype=torch.bool)
        if not isinstance(self.correction, NoCorrection):
            correction = self.correction.compute(inputs)
            result = apply_correction(result, correction, batch.correction_scale)
            dropped = correction.dropped
        if not isinstance(self.algo.rejection, NoRejection):
            rejected = self.algo.rejection.rejected(inputs)
            result = apply_rejection(result, rejected)
            dropped = dropped | rejected
        metrics = {"policy_loss": result.token_loss.detach(), "entropy": entropy.detach(), **result.metrics}
        tokens = result.token_loss - entropy_coef * entropy
        if batch.ref_logprobs is not None:
            kl = self.kl_estimator(policy_logprobs, batch.ref_logprobs)
            tokens = tokens + kl_coef * kl
            metrics["kl"] = kl.detach()
        return (batch.weights * tokens.masked_fill(dropped, 0.0)).sum(), metrics

    def critic(self, batch: TrainBatch, values: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        settings = self.critic_settings
        assert batch.old_values is not None and batch.returns is not None and batch.value_weights is not None
        assert settings is not None
        token_loss, clipped = value_loss(values, batch.old_values, batch.returns, settings.value_clip)
        metrics = {"value_loss": token_loss.detach(), "value_clip_fraction": clipped, "value": values.detach()}
        return settings.value_coef * (batch.value_weights * token_loss).sum(), metrics


MISMATCH_METRICS = ("mismatch", "mismatch_p99", "mismatch_ratio", *OFF_POLICY_METRICS)
MAX_LOG_RATIO = 20.0
"""Bound of the summed log-ratio of a segment, so that the ratio stays finite."""


class SamplerMismatch:
    """Difference of the learner's log-probabilities from the sampler's, collected on the model's device."""

    def __init__(self) -> None:
        self._policy_logprobs: list[Tensor] = []
        self._sampler_logprobs: list[Tensor] = []
        self._counts: list[int] = []

    def add(self, policy_logprobs: Tensor, sampler_logprobs: Tensor, counts: Sequence[int]) -> None:
        """Add sampled tokens. `counts`: tokens per segment, in their order."""
        self._policy_logprobs.append(policy_logprobs)
        self._sampler_logprobs.append(sampler_logprobs)
        self._counts += counts

    def take(self) -> dict[str, float]:
        """Return MISMATCH_METRICS and start over.

        They are the mean and the 99th percentile of the absolute difference, the mean ratio of segments, and the
        off-policy metrics.
        """
        if not self._counts:
            return {}
        policy_logprobs, sampler_logprobs = torch.cat(self._policy_logprobs), torch.cat(self._sampler_logprobs)
        difference = policy_logprobs - sampler_logprobs
        owners = torch.repeat_interleave(torch.tensor(self._counts)).to(difference.device)
        sums = torch.zeros(len(self._counts), device=difference.device, dtype=difference.dtype)
        ratio = sums.index_add(0, owners, difference).clamp(max=MAX_LOG_RATIO).exp().mean()
        distance = difference.abs()
        rank = max(1, round(0.99 * len(distance)))
        first = torch.stack([distance.mean(), distance.kthvalue(rank).values, ratio])
        offpolicy = compute_off_policy_metrics(policy_logprobs, sampler_logprobs, owners, len(self._counts))
        numbers = torch.cat([first.double(), offpolicy]).tolist()
        self._policy_logprobs, self._sampler_logprobs, self._counts = [], [], []
        return dict(zip(MISMATCH_METRICS, numbers, strict=True))
