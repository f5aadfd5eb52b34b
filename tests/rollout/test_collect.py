import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from episodes_for_tests import context, end_id, limits, says, spoken, task_of
from turnwise.core.errors import InfrastructureFailure, RewardFailure, UserError
from turnwise.core.messages import Message, system, user
from turnwise.core.protocols import Env, MakeEnv, Observation, Policy, StepResult
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Status
from turnwise.engine.scripted import ScriptedEngine
from turnwise.envs.registry import load_spec
from turnwise.rollout.collect import CollectedGroups, Collector
from virtual_time_for_tests import run_in_virtual_time

TASKS = [task_of("test", index) for index in range(2)]


class OneTurn:
    """An environment of one turn that pays its member's number; what `broken` names raises there."""

    def __init__(self, member: int = 0, broken: str = "", error: type[Exception] = RuntimeError) -> None:
        self._member, self._broken, self._error = member, broken, error

    async def start(self) -> Observation:
        self._break("start")
        return Observation(messages=(system("Say something."), user("Now.")))

    async def step(self, action: Message) -> StepResult:
        self._break("step")
        return StepResult(messages=(user("Fine."),), reward=float(self._member), terminated=True)

    async def close(self) -> None:
        self._break("close")

    def _break(self, where: str) -> None:
        if where == self._broken:
            raise self._error("it broke")


def collector(
    make_env: MakeEnv,
    *,
    policy: Policy | None = None,
    in_flight: int = 8,
    attempts: int = 3,
    run_seed: int = 0,
    timeout_s: float = 60.0,
) -> Collector:
    return Collector(
        policy=policy or says("hi"),
        make_env=make_env,
        context=context(),
        limits=limits(timeout_s=timeout_s),
        in_flight=in_flight,
        attempts=attempts,
        run_seed=run_seed,
    )


def collect(runner: Collector, tasks: list[Task] = TASKS, group_size: int = 4, round: int = 0) -> CollectedGroups:
    return run_in_virtual_time(runner.collect(tasks, group_size=group_size, round=round))


def members(collected: CollectedGroups) -> list[list[tuple[int, int]]]:
    return [[(each.member, each.attempt) for each in group.trajectories] for group in collected.groups]


def test_collect_twice_in_a_round_uses_new_members() -> None:
    runner, drawn = collector(lambda task, member, attempt: OneTurn(member)), Counter()
    found = [asyncio.run(runner.collect(TASKS[:1], group_size=2, round=0, drawn=drawn)) for _ in range(2)]
    assert [members(each) for each in found] == [[[(0, 0), (1, 0)]], [[(2, 0), (3, 0)]]]


def test_collect_returns_groups_in_task_order() -> None:
    collected = collect(collector(lambda task, member, attempt: OneTurn(member)))
    assert [group.task for group in collected.groups] == TASKS
    assert members(collected) == [[(0, 0), (1, 0), (2, 0), (3, 0)]] * 2
    assert all(each.task == group.task for group in collected.groups for each in group.trajectories)
    assert [each.total_reward for each in collected.groups[1].trajectories] == [0.0, 1.0, 2.0, 3.0]
    assert not collected.counts


@pytest.mark.parametrize("broken", ["making", "start", "step", "close"])
@pytest.mark.parametrize("error", [RuntimeError, ValueError, TimeoutError])
def test_collect_retries_and_counts_a_failed_member(broken: str, error: type[Exception]) -> None:
    def make(task: Task, member: int, attempt: int) -> Env:
        fails = task == TASKS[1] and member == 2 and attempt < 2
        if fails and broken == "making":
            raise error
        return OneTurn(member, broken if fails else "", error)

    collected = collect(collector(make))
    assert members(collected) == [[(0, 0), (1, 0), (2, 0), (3, 0)], [(0, 0), (1, 0), (2, 2), (3, 0)]]
    assert collected.counts == {"env_errors": 2}


def test_first_failure_of_an_environment_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    runner = collector(lambda task, member, attempt: OneTurn(member, "step" if attempt == 0 else "", RuntimeError))
    for round in range(2):
        collect(runner, round=round)
    assert caplog.text.count("the episode is retried (reported once, counted as rollout/env_errors)") == 1


@pytest.mark.parametrize("broken", ["start", "step", "close"])
def test_infrastructure_failures_are_retried_with_equal_randomness(broken: str) -> None:
    made: Counter[tuple[int, int, int]] = Counter()

    def make(task: Task, member: int, attempt: int) -> Env:
        made[task.seed, member, attempt] += 1
        return OneTurn(member, broken if made[task.seed, member, attempt] == 1 else "", InfrastructureFailure)

    collected = collect(collector(make), group_size=2)
    assert members(collected) == [[(0, 0), (1, 0)]] * 2
    assert set(made.values()) == {2} and all(attempt == 0 for _, _, attempt in made)
    assert collected.counts == {"infra_errors": 4}


def test_collect_bounds_attempts_and_keeps_the_remaining_members() -> None:
    made: list[tuple[int, int]] = []

    def make(task: Task, member: int, attempt: int) -> Env:
        made.append((member, attempt))
        return OneTurn(member, "step" if member == 1 else "")

    collected = collect(collector(make, attempts=2), TASKS[:1])
    assert members(collected) == [[(0, 0), (2, 0), (3, 0)]]
    assert [attempt for member, attempt in made if member == 1] == [0, 1]
    assert len(made) == 5
    assert collected.counts == {"env_errors": 2, "dropped": 1}


def test_collect_counts_members_without_a_reward_separately() -> None:
    def make(task: Task, member: int, attempt: int) -> Env:
        return OneTurn(member, "step" if member in (1, 2) else "", RewardFailure if member == 1 else RuntimeError)

    collected = collect(collector(make, attempts=2), TASKS[:1])
    errors = {"infra_errors": 2, "env_errors": 2}
    assert collected.counts == {**errors, "dropped": 2, "dropped_no_reward": 1}
    assert "it broke" in str(collected.last_failure)


def test_collect_drops_and_counts_groups_of_fewer_than_two() -> None:
    def make(task: Task, member: int, attempt: int) -> Env:
        return OneTurn(member, "step" if task == TASKS[0] and member > 0 else "")

    collected = collect(collector(make, attempts=1), group_size=3)
    assert [group.task for group in collected.groups] == TASKS[1:]
    assert collected.counts == {"env_errors": 2, "dropped": 3, "dropped_groups": 1}


def test_collect_keeps_groups_of_one_if_group_size_is_one() -> None:
    def make(task: Task, member: int, attempt: int) -> Env:
        return OneTurn(member, "step" if task == TASKS[0] else "")

    assert members(collect(collector(make), group_size=1)) == [[(0, 0)]]


def test_collect_raises_the_reason_if_every_episode_fails() -> None:
    with pytest.raises(UserError, match=r"Every episode failed.*it broke"):
        collect(collector(lambda task, member, attempt: OneTurn(member, "step"), attempts=2))


def test_collect_reports_an_environment_that_cannot_be_created() -> None:
    """Not a group of as many errors as episodes were started."""

    def make(task: Task, member: int, attempt: int) -> Env:
        raise UserError("install something")

    with pytest.raises(UserError, match=r"^install something$"):
        collect(collector(make))


def test_collect_does_not_retry_bugs() -> None:
    def script(key: EpisodeKey, turn: int, ids: list[int]) -> list[int]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        collect(collector(lambda *_: OneTurn(), policy=ScriptedEngine(script, [])))


def test_collect_gives_each_attempt_its_own_episode_key() -> None:
    """Its key differs, so that it repeats neither its randomness nor its tokens."""
    keys: list[EpisodeKey] = []

    def script(key: EpisodeKey, turn: int, ids: list[int]) -> list[int]:
        keys.append(key)
        return spoken("hi")

    def make(task: Task, member: int, attempt: int) -> Env:
        return OneTurn(member, "step" if attempt == 0 else "")

    collect(collector(make, policy=ScriptedEngine(script, [end_id()]), run_seed=5), group_size=2, round=3)
    assert len({key.address for key in keys}) == len(keys) == 8
    assert {(key.run_seed, key.round, key.attempt) for key in keys} == {(5, 3, 0), (5, 3, 1)}


def test_members_share_the_start_state_and_have_their_own_randomness() -> None:
    lake = load_spec("frozen_lake")
    tasks = [task_of("frozen_lake", index, slippery=True) for index in range(3)]
    runner = collector(lake.make, policy=says("<answer>Right || Down || Right || Down</answer>"))
    collected = collect(runner, tasks, group_size=6)
    starts = [{each.turns[0].context_ids for each in group.trajectories} for group in collected.groups]
    assert [len(start) for start in starts] == [1, 1, 1]
    assert len(set.union(*starts)) == 3, "other tasks start otherwise"
    ways = [{_ids(each.turns) for each in group.trajectories} for group in collected.groups]
    assert max(map(len, ways)) > 1
    again = collect(runner, tasks, group_size=6)
    assert [[_ids(each.turns) for each in group.trajectories] for group in again.groups] == [
        [_ids(each.turns) for each in group.trajectories] for group in collected.groups
    ]


def _ids(turns: tuple) -> tuple:
    return tuple((turn.context_ids, turn.action_ids, turn.reward) for turn in turns)


class Counted(OneTurn):
    """Counts how many episodes run at once, and waits where a test wants it to."""

    live = most = 0

    def __init__(self, waits: Callable[[], Awaitable[object]]) -> None:
        super().__init__()
        self._waits = waits

    async def start(self) -> Observation:
        Counted.live += 1
        Counted.most = max(Counted.most, Counted.live)
        return await super().start()

    async def step(self, action: Message) -> StepResult:
        await self._waits()
        return await super().step(action)

    async def close(self) -> None:
        Counted.live -= 1


@pytest.mark.parametrize("in_flight", [1, 3, 20])
def test_collect_limits_concurrent_episodes(in_flight: int) -> None:
    Counted.live = Counted.most = 0
    naps = iter([0.0, 0.004, 0.001] * 10)
    runner = collector(lambda *_: Counted(lambda: asyncio.sleep(next(naps))), in_flight=in_flight)
    collected = collect(runner, TASKS, group_size=5)
    assert sum(len(group.trajectories) for group in collected.groups) == 10
    assert Counted.most == min(in_flight, 10)
    assert Counted.live == 0


def test_collect_replaces_finished_episodes_at_once() -> None:
    async def scenario() -> list[int]:
        gate, done = asyncio.Event(), list[int]()

        def make(task: Task, member: int, attempt: int) -> Env:
            return Counted(gate.wait if member == 0 else lambda: asyncio.sleep(0))

        runner = collector(make, in_flight=2)

        def note(count: int, total: int) -> None:
            done.append(count)
            assert total == 6
            if count == 5:  # all the others are through while the first still hangs
                gate.set()

        await runner.collect(TASKS[:1], group_size=6, round=0, progress=note)
        return done

    assert run_in_virtual_time(scenario()) == [1, 2, 3, 4, 5, 6]


def test_collect_retries_a_hanging_environment_without_affecting_others() -> None:
    made: Counter[int] = Counter()

    def make(task: Task, member: int, attempt: int) -> Env:
        made[member] += 1
        return Counted(asyncio.Event().wait if (member, made[member]) == (1, 1) else lambda: asyncio.sleep(0))

    collected = collect(collector(make, timeout_s=0.2), TASKS[:1])
    (group,) = collected.groups
    assert [each.status for each in group.trajectories] == [Status.FAILED] * 4
    assert made == {0: 1, 1: 2, 2: 1, 3: 1}
    assert collected.counts == {"infra_errors": 1}
    assert Counted.live == 0


@pytest.mark.parametrize("where", ["start", "step", "close"])
def test_collect_interrupts_and_retries_a_blocking_environment(where: str) -> None:
    made: Counter[int] = Counter()

    class Blocking(OneTurn):
        async def start(self) -> Observation:
            self._block("start")
            return await super().start()

        async def step(self, action: Message) -> StepResult:
            self._block("step")
            return await super().step(action)

        async def close(self) -> None:
            self._block("close")

        @staticmethod
        def _block(here: str) -> None:
            if here == where:
                time.sleep(60)

    def make(task: Task, member: int, attempt: int) -> Env:
        made[member] += 1
        return Blocking(member) if (member, made[member]) == (1, 1) else OneTurn(member)

    collected = collect(collector(make, timeout_s=0.5), TASKS[:1])
    assert [trajectory.member for trajectory in collected.groups[0].trajectories] == [0, 1, 2, 3]
    assert made == {0: 1, 1: 2, 2: 1, 3: 1}
    assert collected.counts == {"env_errors" if where == "close" else "infra_errors": 1}


def test_collect_does_not_wait_for_an_environment_that_fails_to_close() -> None:
    class Clinging(OneTurn):
        async def close(self) -> None:
            await asyncio.Event().wait()

    def make(task: Task, member: int, attempt: int) -> Env:
        return Clinging(member) if (member, attempt) == (1, 0) else OneTurn(member)

    collected = collect(collector(make, timeout_s=0.1), TASKS[:1])
    assert members(collected) == [[(0, 0), (1, 1), (2, 0), (3, 0)]]


def test_cancellation_does_not_wait_for_an_environment_that_fails_to_close() -> None:
    """An error raised during cancellation must not cause a retry."""
    made: list[int] = []

    class Stuck(OneTurn):
        async def step(self, action: Message) -> StepResult:
            return await asyncio.Event().wait()  # type: ignore[return-value]

    def make(task: Task, member: int, attempt: int) -> Env:
        made.append(attempt)
        return Stuck(member, broken="close")

    async def scenario() -> None:
        async with asyncio.timeout(0.1):
            await collector(make).collect(TASKS, group_size=2, round=0)

    with pytest.raises(TimeoutError):
        run_in_virtual_time(scenario())
    assert made == [0, 0, 0, 0]


def test_groups_of_the_same_task_have_distinct_members() -> None:
    """Few tasks and many groups: equal member numbers would give equal randomness and the same episodes."""
    collected = collect(collector(lambda task, member, attempt: OneTurn(member)), [*TASKS, TASKS[0], TASKS[0]], 2)
    assert [[member for member, _ in group] for group in members(collected)] == [[0, 1], [0, 1], [2, 3], [4, 5]]
