"""Limits on dropped episodes before a run stops."""

import pytest

from turnwise.core.errors import Outage
from turnwise.rollout.failures import MAX_DROPPED_SHARE, WINDOW_STEPS, DropMonitor, DroppedEpisodes, check_dropped


def step(dropped: int, reason: str = "") -> DroppedEpisodes:
    return DroppedEpisodes(dropped=dropped, total=100, reason=reason)


def test_check_dropped_names_the_purpose_of_the_episodes() -> None:
    with pytest.raises(Outage, match="too many to evaluate without them"):
        check_dropped(step(26), purpose="evaluate")


def test_check_dropped_raises_above_the_allowed_share() -> None:
    check_dropped(step(round(100 * MAX_DROPPED_SHARE)))
    with pytest.raises(Outage, match=r"^26 of 100 episodes were dropped, .*the last failure: the judge is gone$"):
        check_dropped(step(round(100 * MAX_DROPPED_SHARE) + 1, reason="the judge is gone"))


def test_drop_monitor_allows_one_bad_step_in_a_full_window() -> None:
    monitor = DropMonitor()
    for dropped in [0] * WINDOW_STEPS + [60]:
        monitor.add(step(dropped))
    with pytest.raises(Outage, match=r"^120 of 400 .* still gone"):
        monitor.add(step(60, reason="still gone"))


def test_drop_monitor_forgets_steps_before_its_window() -> None:
    monitor = DropMonitor()
    for dropped in [25] * 3 + [0] * WINDOW_STEPS + [99]:
        monitor.add(step(dropped))
