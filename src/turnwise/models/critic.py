"""Critics: estimate the value of a position before its next token is chosen. They start at zero everywhere."""

from typing import Any

import torch
from torch import Tensor, nn

from turnwise.core.samples import Batch
from turnwise.models.forward import packed_hidden
from turnwise.models.layers import copy_model


def value_head(model: Any) -> nn.Linear:
    """Return a linear value head of zeros: an untrained critic must not add noise to the advantages."""
    embedding = model.get_input_embeddings().weight
    head = nn.Linear(embedding.shape[1], 1, device=embedding.device, dtype=torch.float32)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


class TrunkCritic(nn.Module):
    """Separate critic: a copy of the policy's trunk with a value head."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.trunk = copy_model(policy.base_model)
        self.head = value_head(policy)

    def forward(self, batch: Batch, keep: Tensor) -> Tensor:
        return self.head(packed_hidden(self.trunk, batch, keep).float()).squeeze(-1).clone()  # FSDP wants no view


class HeadCritic(nn.Module):
    """Value head on the policy's own trunk: no second model, and the value loss also trains the trunk."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.head = value_head(policy)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.head(hidden.float()).squeeze(-1).clone()
