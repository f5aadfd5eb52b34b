"""The losses of Tinker's API, by the formulas of its documentation (tinker-docs.thinkingmachines.ai/tinker/losses).

Each is a sum over tokens. p are the log-probabilities of the trained policy, q those of the sampler (`logprobs`), A the
advantages, and r = exp(p - q).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from turnwise.service.tinker.datums import ForwardBackward
from turnwise.service.tinker.errors import RequestFailure, not_offered

CLIP_LOW, CLIP_HIGH = "clip_low_threshold", "clip_high_threshold"
CLIPPING = {CLIP_LOW: 0.8, CLIP_HIGH: 1.2}
"""Bounds of the ratio. A datum may also have them as inputs, for each token."""

Inputs = Mapping[str, Tensor]
"""[M] by name: the inputs of the data, and settings that are tensors of the same shape."""
LossFunction = Callable[[Tensor, Inputs, Tensor], Tensor]
"""(log-probabilities [M], inputs, index of the datum of each token [M]) -> the loss of each token [M]"""


def cross_entropy(logprobs: Tensor, inputs: Inputs, data: Tensor) -> Tensor:
    """-p w"""
    return -logprobs * inputs["weights"]


def importance_sampling(logprobs: Tensor, inputs: Inputs, data: Tensor) -> Tensor:
    """-r A"""
    return -(logprobs - inputs["logprobs"]).exp() * inputs["advantages"]


def ppo(logprobs: Tensor, inputs: Inputs, data: Tensor) -> Tensor:
    """-min(r A, clip(r, low, high) A)"""
    return _clipped((logprobs - inputs["logprobs"]).exp(), inputs)


def cispo(logprobs: Tensor, inputs: Inputs, data: Tensor) -> Tensor:
    """-stop(clip(r, low, high)) p A"""
    ratio = (logprobs - inputs["logprobs"]).exp()
    return -ratio.clamp(inputs[CLIP_LOW], inputs[CLIP_HIGH]).detach() * logprobs * inputs["advantages"]


def dro(logprobs: Tensor, inputs: Inputs, data: Tensor) -> Tensor:
    """-(p A - beta / 2 (p - q)^2)"""
    penalty = 0.5 * inputs["beta"] * (logprobs - inputs["logprobs"]).square()
    return -(logprobs * inputs["advantages"] - penalty)


def gspo(logprobs: Tensor, inputs: Inputs, data: Tensor) -> Tensor:
    """-min(s A, clip(s, low, high) A), s = exp(mean of p - q over the masked tokens of the datum).

    The gradient of s at a token is that of the token's own log-probability (GSPO-token).
    """
    mask = (inputs["sequence_ratio_mask"] != 0).to(logprobs.dtype)
    sums = torch.zeros(2, int(data.max()) + 1, dtype=logprobs.dtype, device=logprobs.device)
    difference = logprobs.detach() - inputs["logprobs"]
    totals, counts = sums.index_add(1, data, torch.stack([difference * mask, mask]))
    mean = (totals / counts.clamp(min=1))[data]
    return _clipped((mean + logprobs - logprobs.detach()).exp(), inputs)


def _clipped(ratio: Tensor, inputs: Inputs) -> Tensor:
    advantages = inputs["advantages"]
    return -torch.minimum(ratio * advantages, ratio.clamp(inputs[CLIP_LOW], inputs[CLIP_HIGH]) * advantages)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpec:
    function: LossFunction
    needs: tuple[str, ...] = ("logprobs", "advantages")
    """Inputs that every datum must have."""
    defaults: Mapping[str, float] = field(default_factory=dict)
    """Inputs that a datum may have. They are also settings, if they are in `settings`."""
    settings: tuple[str, ...] = ()


LOSSES: dict[str, LossSpec] = {
    "cross_entropy": LossSpec(function=cross_entropy, needs=(), defaults={"weights": 1.0}),
    "importance_sampling": LossSpec(function=importance_sampling),
    "ppo": LossSpec(function=ppo, defaults=CLIPPING, settings=tuple(CLIPPING)),
    "cispo": LossSpec(function=cispo, defaults=CLIPPING, settings=tuple(CLIPPING)),
    "dro": LossSpec(function=dro, defaults={"beta": 0.05}, settings=("beta",)),
    "gspo": LossSpec(function=gspo, needs=("logprobs", "advantages", "sequence_ratio_mask"), defaults=CLIPPING,
                     settings=tuple(CLIPPING)),
}  # fmt: skip
INSTEAD = {
    "stable_reinforce": f"its formula is not published; use one of {', '.join(LOSSES)}",
    "custom": "call forward_backward_custom, which computes the loss in the client",
}


def read_loss(request: ForwardBackward) -> tuple[LossSpec, dict[str, float]]:
    """Return the loss of a request and its settings. Raises RequestFailure."""
    if request.loss in INSTEAD:
        raise not_offered(f"loss_fn {request.loss}", INSTEAD[request.loss])
    spec = LOSSES.get(request.loss)
    if spec is None:
        raise RequestFailure(f'Unknown loss_fn "{request.loss[:40]}": use one of {", ".join(LOSSES)}.')
    settings = dict(spec.defaults)
    for name, value in request.config.items():
        if name not in spec.settings:
            known = f"its settings are {', '.join(spec.settings)}" if spec.settings else "it has no settings"
            raise RequestFailure(f'loss_fn {request.loss} has no setting "{name[:40]}": {known}.')
        if isinstance(value, str) or not abs(value) < float("inf"):
            raise RequestFailure(f"loss_fn_config {name} is {str(value)[:20]}: send a finite number.")
        settings[name] = value
    known_inputs = (*spec.needs, *spec.defaults)
    for number, datum in enumerate(request.data):
        for name in spec.needs:
            if name not in datum.inputs:
                raise RequestFailure(f"data[{number}].loss_fn_inputs has no {name}, which {request.loss} needs.")
        for name in datum.inputs:
            if name not in known_inputs:
                known = ", ".join(("target_tokens", *known_inputs))
                raise RequestFailure(
                    f'data[{number}].loss_fn_inputs has "{name[:40]}", which {request.loss} does not use: send {known}.'
                )
    return spec, settings
