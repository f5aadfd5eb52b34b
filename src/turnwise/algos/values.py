"""The critic's loss."""

import torch
from torch import Tensor


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """0.5 max((V - R)^2, (clip(V, V_old +- c) - R)^2) a token, and where the clipped term won (1 or 0).

    V is clamped to [V_old - c, V_old + c] itself: V_old + clamp(V - V_old) differs in the last bit, and then the
    clipped term wins by rounding where nothing was clipped.
    """
    plain = (values - returns).square()
    clipped = (torch.clamp(values, old_values - clip, old_values + clip) - returns).square()
    return 0.5 * torch.maximum(plain, clipped), (clipped > plain).to(values.dtype)
