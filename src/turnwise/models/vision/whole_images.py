"""Models in which the tokens of an image attend to all of it (Gemma 3): to later tokens too, unlike those of text.

ids      text  text  i0  i1  i2  i3  text      i0..i3: tokens of one image
ahead      0     0    3   2   1   0    0       later tokens that each token attends to

So an image enters the cache in one pass, and its keys do not change when more tokens follow.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from turnwise.models.vision.encoder import image_encoder


def attends_to_whole_images(model: Any) -> bool:
    encoder = image_encoder(model)
    return encoder is not None and encoder.whole_images


def tokens_ahead(model: Any, ids: Tensor, lengths: Sequence[int]) -> Tensor | None:
    """Return the number of later tokens that each of the packed tokens attends to. [N]

    None if it is 0 for all. `lengths`: of the rows, which end between images.
    """
    if not attends_to_whole_images(model) or not bool((ids < 0).any()):
        return None
    host = ids.cpu()
    goes_on = torch.zeros_like(host, dtype=torch.bool)  # whether the next token is the next one of the same image
    goes_on[:-1] = (host[:-1] < 0) & (host[1:] == host[:-1] - 1)
    goes_on[torch.tensor(lengths).cumsum(0) - 1] = False
    lasts = (~goes_on).nonzero()[:, 0]
    positions = torch.arange(len(host))
    return (lasts[torch.searchsorted(lasts, positions)] - positions).to(ids.device)


def end_before_image(ids: Sequence[int], end: int) -> int:
    """Return the last position up to `end` that is not inside an image: where a pass may end."""
    while 0 < end < len(ids) and ids[end] < 0 and ids[end] == ids[end - 1] - 1:
        end -= 1
    return end
