"""Members that broke, or that no reward was found for: a few are left out and counted, many stop the run.

Those that are left are seldom like those that were lost: where a judge is gone, only answers that it had seen before
still have a verdict, and training on them alone would favour them.
"""

from collections import deque
from dataclasses import dataclass

from turnwise.core.errors import Outage

MOST = 0.25
"""The share of episodes that may be lost."""
STEPS = 4
"""Of training, over which that share is taken: after as many, one that lost more by itself stops nothing."""


@dataclass(slots=True, kw_only=True)
class Lost:
    """Of the members that were wanted."""

    members: int = 0
    wanted: int = 0
    why: str = ""
    """What the last of them was lost to."""


def check_losses(*lost: Lost) -> None:
    """An Outage where they are too many, all together."""
    members, wanted = sum(each.members for each in lost), sum(each.wanted for each in lost)
    if members > MOST * wanted:
        why = lost[-1].why
        raise Outage(
            f"{members} of {wanted} episodes were lost, too many to leave out; the last: {why}: mend that first"
        )


class Losses:
    """Of a run's last steps. A run that is resumed begins anew: what was mended is not held against it."""

    def __init__(self) -> None:
        self._steps: deque[Lost] = deque(maxlen=STEPS)

    def see(self, lost: Lost) -> None:
        self._steps.append(lost)
        check_losses(*self._steps)
