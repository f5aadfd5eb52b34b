"""How many members may be lost before a run stops."""

import pytest

from turnwise.core.errors import Outage
from turnwise.rollout.failures import MOST, STEPS, Losses, Lost, check_losses


def lost(members: int, wanted: int = 100, why: str = "") -> Lost:
    return Lost(members=members, wanted=wanted, why=why)


def test_a_few_are_no_reason_to_stop_and_many_are() -> None:
    check_losses(lost(round(100 * MOST)))
    with pytest.raises(
        Outage, match=r"^26 of 100 episodes were lost, .*; the last: the judge is gone: mend that first$"
    ):
        check_losses(lost(round(100 * MOST) + 1, why="the judge is gone"))


def test_one_bad_step_among_good_ones_stops_nothing_but_one_after_the_other_do() -> None:
    losses = Losses()
    for members in [0] * STEPS + [60]:
        losses.see(lost(members))
    with pytest.raises(Outage, match=r"^120 of 400 .* still gone"):
        losses.see(lost(60, why="still gone"))


def test_only_the_last_steps_count() -> None:
    losses = Losses()
    for members in [25] * 3 + [0] * STEPS + [99]:
        losses.see(lost(members))
