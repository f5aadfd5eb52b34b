"""Critics: estimate the value of a position before its next token is chosen. They start at zero everywhere."""

import copy
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UtteranceValues:
    """Estimates of D utterances by both critics."""

    q: Tensor  # [D, 2] of the state and the utterance
    v: Tensor  # [D, 2] of the state before the utterance


class UtteranceCritic(nn.Module):
    """Double Q and V of whole utterances, over a trained copy of the policy's trunk or over the policy's own.

        tokens   s s s a a o o b b     two utterances a and b; the trunk is causal, so one pass reads all of them
        V_i          ^       ^         hidden state of the last token before the utterance
        Q_i              ^       ^     hidden state of the last token of the utterance

    The critics share the trunk and differ in the random first layer of their heads. The last layer starts at 0. The
    policy's own trunk gets no gradient from them: only the heads are trained, averaged and saved here.

    An estimate is mean + std x output of the head, with `unit` = (mean, std), so that a learning rate means the same
    whatever the rewards are: a head that has to grow to 10 learns little else meanwhile (van Hasselt et al. 2016,
    arXiv:1602.07714, without their later changes of the unit).
    """

    def __init__(self, policy: Any, seed: int, *, own_trunk: bool = True) -> None:
        super().__init__()
        self.own_trunk = own_trunk
        if own_trunk:
            self.trunk = copy_model(policy.base_model)
        else:
            self.__dict__["trunk"] = policy.base_model  # not as a submodule
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.q_heads = nn.ModuleList(_two_layer_head(policy) for _ in range(2))
            self.v_heads = nn.ModuleList(_two_layer_head(policy) for _ in range(2))
        self.unit: Tensor
        self.register_buffer("unit", torch.tensor([0.0, 1.0], device=policy.get_input_embeddings().weight.device))

    def frozen_copy(self) -> "UtteranceCritic":
        copied = copy.deepcopy(self, {id(self.trunk): self.trunk})
        if self.own_trunk:
            copied.trunk = copy_model(self.trunk)
        return copied.requires_grad_(False)

    def forward(self, batch: Batch, before: Tensor, last: Tensor) -> UtteranceValues:
        """Judge the utterances between the packed positions `before` [D], exclusive, and `last` [D]."""
        # A position may be both, and must be read once: the gradient of a duplicate would count twice.
        positions, chosen = torch.cat([before, last]).unique(return_inverse=True)
        with torch.set_grad_enabled(self.own_trunk and torch.is_grad_enabled()):
            hidden = packed_hidden(self.trunk, batch, positions).float()[chosen]
        states, utterances = hidden.tensor_split([len(before)])
        mean, std = self.unit
        return UtteranceValues(
            q=mean + std * torch.cat([head(utterances) for head in self.q_heads], dim=1),
            v=mean + std * torch.cat([head(states) for head in self.v_heads], dim=1),
        )


def _two_layer_head(policy: Any) -> nn.Sequential:
    """Return a head that is random inside and 0 at its output: two of them start equal and learn differently."""
    output = value_head(policy)
    inner = nn.Linear(output.in_features, output.in_features, dtype=torch.float32).to(output.weight.device)
    return nn.Sequential(inner, nn.ReLU(), output)
