import asyncio
from collections import Counter

import pytest

from episodes_for_tests import task_of, trajectory_of, turn_of
from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Trajectory
from turnwise.evaluation.episodes import MAX_FAILURES_IN_A_ROW, list_tries, run_episodes


class Shaky:
    """Breaks as often as `breaks` says of a task and try, then plays; counts how many play at once."""

    def __init__(self, breaks: dict[tuple[int, int], int] | None = None, *, always: bool = False) -> None:
        self.breaks, self.always = breaks or {}, always
        self.keys: list[EpisodeKey] = []
        self.now = self.most = 0

    async def episode(self, key: EpisodeKey) -> Trajectory:
        self.keys.append(key)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        before = sum((key.task, key.member) == (each.task, each.member) for each in self.keys) - 1
        if self.always or before < self.breaks.get((key.task.seed, key.member), 0):
            raise (EnvironmentFailure if before % 2 else InfrastructureFailure)(f"broke {before}")
        return trajectory_of([turn_of([1], [2])], task=key.task, member=key.member)


def tasks(count: int) -> list[Task]:
    return [task_of("test", index) for index in range(count)]


def played(player: Shaky, count: int, tries: int = 1, attempts: int = 3) -> tuple[list[Trajectory], list[Exception]]:
    done: list[Trajectory] = []
    wanted = list_tries(tasks(count), tries)
    failures = asyncio.run(run_episodes(player, wanted, in_flight=4, attempts=attempts, on_finished=done.append))
    return done, failures


def test_run_episodes_runs_each_try_once_within_the_concurrency_limit() -> None:
    player = Shaky()
    done, failures = played(player, count=10, tries=3)
    assert Counter((each.task.seed, each.member) for each in done) == {(s, m): 1 for s in range(10) for m in range(3)}
    assert (failures, player.most) == ([], 4)
    assert {(key.run_seed, key.round) for key in player.keys} == {(0, 0)}


def test_run_episodes_starts_first_tries_first() -> None:
    assert [(task.seed, member) for task, member in list_tries(tasks(2), 2)] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_run_episodes_retries_failures_then_drops_them() -> None:
    player = Shaky({(2, 0): 2, (4, 0): 3})
    done, failures = played(player, count=6)
    assert sorted(each.task.seed for each in done) == [0, 1, 2, 3, 5]
    assert [str(each) for each in failures] == ["broke 2"]
    attempts = [key.attempt for key in player.keys if key.task.seed == 2]
    assert attempts == [0, 0, 1], "an infrastructure failure keeps the attempt number, an environment failure raises it"


def test_run_episodes_raises_the_reason_if_every_episode_fails() -> None:
    player = Shaky(always=True)
    with pytest.raises(UserError, match=r"8 episodes in a row failed. .* last failure: broke 1"):
        played(player, count=1000, attempts=2)
    assert len(player.keys) <= 2 * (MAX_FAILURES_IN_A_ROW + 4)


def test_run_episodes_continues_after_occasional_failures() -> None:
    done, failures = played(Shaky({(seed, 0): 9 for seed in range(0, 60, 3)}), count=60)
    assert (len(done), len(failures)) == (40, 20)


def test_run_episodes_propagates_bugs_unchanged() -> None:
    class Wrong:
        async def episode(self, key: EpisodeKey) -> Trajectory:
            raise UserError("no such model")

    with pytest.raises(UserError, match="no such model"):
        asyncio.run(run_episodes(Wrong(), list_tries(tasks(9), 1), in_flight=4, attempts=3, on_finished=print))
