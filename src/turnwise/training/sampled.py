"""What a policy says of the tokens that were sampled."""

from typing import Any

from torch import Tensor

from turnwise.algos.entropy import logprobs_and_entropy
from turnwise.core.samples import Batch
from turnwise.models.forward import by_plan_in_force, packed_hidden, packed_logits
from turnwise.models.head import head_logprobs, head_of


def sampled_logprobs(model: Any, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities and entropies [M], and the hidden states [M, H] that they come from. Inside `laid_out`."""
    head = head_of(model) if by_plan_in_force(batch) else None
    if head is not None:
        hidden = packed_hidden(model.base_model, batch, batch.sources)
        return *head_logprobs(head, hidden, batch.targets, batch.temperatures), hidden
    logits, hidden = packed_logits(model, batch, batch.sources)
    return *logprobs_and_entropy(logits, batch.targets, batch.temperatures), hidden
