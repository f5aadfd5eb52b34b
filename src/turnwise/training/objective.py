"""What is minimised: the policy loss with its KL and entropy terms, and the critic's loss."""

from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.algos.corrections import CORRECTIONS, Correction, CorrectionParams, correct
from turnwise.algos.kl import KlEstimator
from turnwise.algos.losses import Loss, LossInputs, LossParams
from turnwise.algos.rejection import RejectionParams, find_rejected, reject
from turnwise.algos.values import value_loss
from turnwise.core.samples import TrainBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    loss: Loss
    loss_params: LossParams
    correction: Correction
    correction_params: CorrectionParams
    rejection: RejectionParams
    entropy_coef: float
    kl_estimator: KlEstimator
    value_coef: float
    value_clip: float

    def policy(
        self, batch: TrainBatch, logprobs: Tensor, entropy: Tensor, kl_coef: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss (a sum: the weights carry the aggregation) and numbers of each token, [M]."""
        counts = torch.tensor(batch.batch.counts)
        inputs = LossInputs(
            logprobs=logprobs,
            old_logprobs=batch.old_logprobs,
            sampler_logprobs=batch.sampler_logprobs,
            advantages=batch.advantages,
            segment_ids=torch.repeat_interleave(counts).to(logprobs.device),
            turn_ids=batch.turn_ids,
            selected=batch.selected,
        )
        result = self.loss.compute(inputs, self.loss_params)
        if self.correction is not CORRECTIONS["none"]:
            correction = self.correction.compute(inputs, self.correction_params)
            result = correct(result, correction, batch.correction_scale)
        if self.rejection.active:
            result = reject(result, find_rejected(inputs, self.rejection))
        tokens = result.token_loss - self.entropy_coef * entropy
        metrics = {"policy_loss": result.token_loss.detach(), "entropy": entropy.detach(), **result.metrics}
        if batch.ref_logprobs is not None:
            kl = self.kl_estimator(logprobs, batch.ref_logprobs)
            tokens = tokens + kl_coef * kl
            metrics["kl"] = kl.detach()
        return (batch.weights * tokens).sum(), metrics

    def critic(self, batch: TrainBatch, values: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        assert batch.old_values is not None and batch.returns is not None and batch.value_weights is not None
        token_loss, clipped = value_loss(values, batch.old_values, batch.returns, self.value_clip)
        metrics = {"value_loss": token_loss.detach(), "value_clip_fraction": clipped, "value": values.detach()}
        return self.value_coef * (batch.value_weights * token_loss).sum(), metrics
