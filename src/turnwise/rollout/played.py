"""What has been played of an episode so far: a time-out loses none of it."""

import time
from dataclasses import dataclass, field

from turnwise.core.messages import Picture
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Status, Trajectory, Turn


@dataclass(slots=True, kw_only=True)
class Played:
    start: Picture | None = None
    turns: list[Turn] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    def trajectory(self, key: EpisodeKey, status: Status) -> Trajectory:
        return Trajectory(
            task=key.task,
            member=key.member,
            attempt=key.attempt,
            turns=tuple(self.turns),
            status=status,
            turn_rewards=tuple(turn.reward for turn in self.turns),
            timings={"wall_s": time.perf_counter() - self.began},
            start=self.start,
        )
