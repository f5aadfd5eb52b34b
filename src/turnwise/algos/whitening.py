"""Whitening: mean 0 and variance 1 over the tokens that a mask selects."""

import torch
from torch import Tensor

VARIANCE_EPSILON = 1e-8


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8) with the unbiased variance over `mask`; 0 where the mask is 0.

    Equal values, and a single one, become exactly 0: `var_mean` updates a running mean, where a sum divided by the
    count would leave rounding noise, which is then divided by 1e-4.
    """
    selected = values[mask].double()
    if selected.numel() == 0:
        return torch.zeros_like(values)
    variance, mean = torch.var_mean(selected, correction=min(1, selected.numel() - 1))
    whitened = (selected - mean) / (variance + VARIANCE_EPSILON).sqrt()
    return torch.zeros_like(values).masked_scatter(mask, whitened.to(values.dtype))
