"""Vision towers of the Qwen family with fewer and larger operations than transformers' own. The results are equal.

transformers attends within each image by a call of its own, and projects patches by a three-dimensional convolution:
on a GPU, thousands of small operations for a batch of images.
"""

from collections import defaultdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

BATCHED = "batched_flash"
"""Name of the attention. With "flash" in it, transformers passes the lengths of all images in one call."""


def batch_tower(model: Any) -> None:
    """Let the vision tower attend within all images of equal size at once, and project patches by one product."""
    towers = [module for module in model.modules() if getattr(module, "config", None) is model.config.vision_config]
    convolutions = [module for tower in towers for module in tower.modules() if isinstance(module, nn.Conv3d)]
    if not convolutions:  # only these towers are given all images as one sequence
        return
    for convolution in convolutions:
        convolution.__class__ = OnePatchConvolution
    model.config.vision_config._attn_implementation = BATCHED


class OnePatchConvolution(nn.Conv3d):
    """A convolution whose kernel covers the whole input. [N, C, T, H, W] -> [N, D, 1, 1, 1]"""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input.flatten(1), self.weight.flatten(1), self.bias)[..., None, None, None]


def batched_attention(
    _: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    cu_seq_lens_q: Tensor,
    **__: Any,
) -> tuple[Tensor, None]:
    """Attend within each of several sequences that stand one after the other. [1, heads, N, d] -> [1, N, heads, d]

    Sequences of equal length share a call of scaled_dot_product_attention. If all have, nothing is copied.
    """
    assert attention_mask is None
    lengths = sequence_lengths(cu_seq_lens_q)
    if len(set(lengths)) == 1:
        q, k, v = (tensor[0].unflatten(1, (len(lengths), -1)).transpose(0, 1) for tensor in (query, key, value))
        attended = F.scaled_dot_product_attention(q, k, v, scale=scaling)
        return attended.transpose(1, 2).flatten(0, 1)[None], None
    parts = [tensor.split(lengths, dim=2) for tensor in (query, key, value)]
    alike = defaultdict[int, list[int]](list)
    for index, length in enumerate(lengths):
        alike[length].append(index)
    outputs: list[Tensor] = [query] * len(lengths)
    for indices in alike.values():
        queries, keys, values = (torch.cat([part[index] for index in indices]) for part in parts)
        attended = F.scaled_dot_product_attention(queries, keys, values, scale=scaling).transpose(1, 2)
        for index, output in zip(indices, attended.split(1), strict=True):
            outputs[index] = output
    return torch.cat(outputs, dim=1), None


def sequence_lengths(ends: Any) -> list[int]:
    """Return the differences. They are kept with the tensor, which all layers get: reading it waits for the GPU."""
    if not hasattr(ends, "sequence_lengths"):
        ends.sequence_lengths = ends.diff().tolist()
    return ends.sequence_lengths


AttentionInterface.register(BATCHED, batched_attention)
