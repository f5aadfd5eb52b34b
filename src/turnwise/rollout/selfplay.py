"""Self-play: matches of two-player games."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnwise.core.protocols import Env, Policy
from turnwise.core.task import EpisodeKey, Task
from turnwise.envs.games.selfplay import as_player
from turnwise.rollout.matches import Seat, SeatedCollector

MakeMatch = Callable[[Task, int, int], tuple[Env, Env]]
"""(task, member, attempt) -> the environments of a new game's two players."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchCollector(SeatedCollector):
    """Runs games: two episodes, one per player."""

    policy: Policy
    opponent: Policy | None
    """Policy of the other player, whose episode is not collected. None: the policy plays both, with tasks in pairs as
    drawn by `SelfPlayTasks`."""
    make_match: MakeMatch

    @property
    def tasks_per_match(self) -> int:
        return 2 if self.opponent is None else 1

    def seats(self, keys: Sequence[EpisodeKey]) -> Sequence[Seat]:
        first = keys[0]
        envs = self.make_match(first.task, first.member, first.attempt)
        sides = [as_player(first.task, player) for player in range(len(envs))]
        collected = [key.task for key in keys]
        return [
            Seat(
                task=side,
                env=env,
                policy=self.policy if side in collected or self.opponent is None else self.opponent,
            )
            for side, env in zip(sides, envs, strict=True)
        ]
