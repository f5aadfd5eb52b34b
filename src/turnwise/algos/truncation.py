"""Episodes that a token or time limit cut, where `algo.truncated = drop`."""

from torch import Tensor


def drop_truncated(mask: Tensor, cut_short: Tensor) -> Tensor:
    """The mask [B, T] without the rows that were cut short [B].

    A row whose mask is all 0 is neither trained on nor counted in any statistic: its reward, which says more about
    the limit than about the play, does not move the others' baseline either.
    """
    return mask & ~cut_short[:, None]
