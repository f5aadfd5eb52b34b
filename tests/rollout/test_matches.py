"""Matches: both sides are episodes of their own, run together, and are trained on what each of them saw."""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from episodes_for_tests import context, end_id, limits, renderer, spoken
from players_for_tests import player_of
from turnwise.core.errors import UserError
from turnwise.core.messages import Message
from turnwise.core.protocols import Completion, Env, Policy, Sampling, Session, StepResult
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Status
from turnwise.engine.scripted import ScriptedEngine
from turnwise.envs.games.selfplay import SelfPlayEnv, make_selfplay_envs
from turnwise.envs.registry import load_spec
from turnwise.rollout.collect import CollectedGroups
from turnwise.rollout.selfplay import MakeMatch, MatchCollector
from turnwise.rollout.tasks import EnvMixEntry, SelfPlayTasks
from virtual_time_for_tests import follow_virtual_time, run_in_virtual_time

KIND = load_spec("tic_tac_toe")
PARAMS = KIND.check_params({})


def source(both: bool) -> SelfPlayTasks:
    return SelfPlayTasks(mix=(EnvMixEntry(env="tic_tac_toe", params=PARAMS),), run_seed=0, both=both)


def make_match(task: Task, member: int, attempt: int) -> tuple[Env, Env]:
    return make_selfplay_envs(KIND, task, member, attempt)


def board_in(ids: Sequence[int]) -> list[str]:
    """The cells of the last board that was shown."""
    rows = re.findall(r"(?:[XO_1-9] ){2}[XO_1-9]", renderer().decode(list(ids)))
    return " ".join(rows[-3:]).split()


class Recorder:
    """Plays the first free cell from the left, or from the right on odd members; remembers whom it played for."""

    def __init__(self) -> None:
        self.keys: list[EpisodeKey] = []
        self.policy = ScriptedEngine(self._say, [end_id()])

    def _say(self, key: EpisodeKey, turn: int, ids: list[int]) -> Sequence[int]:
        self.keys.append(key)
        free = [cell for cell in board_in(ids) if cell.isdigit()]
        return spoken(f"<answer>{free[-1 if key.member % 2 else 0]}</answer>")


def collector(
    policy: Policy, opponent: Policy | None = None, make: MakeMatch = make_match, **given: Any
) -> MatchCollector:
    settings = {"in_flight": 64, "attempts": 3, "run_seed": 0, "limits": limits()} | given
    return MatchCollector(policy=policy, opponent=opponent, make_match=make, context=context(), **settings)


def collect(runner: MatchCollector, tasks: list[Task], group_size: int = 4) -> CollectedGroups:
    """A side that waits for ever is a failure at once."""
    return run_in_virtual_time(runner.collect(tasks, group_size=group_size, round=0))


def test_match_returns_one_group_per_player() -> None:
    tasks = source(both=True).draw(0, 4)
    recorder = Recorder()
    collected = collect(collector(recorder.policy), tasks)
    assert [group.task for group in collected.groups] == tasks and not collected.counts
    for group in collected.groups:
        assert [each.member for each in group.trajectories] == [0, 1, 2, 3]
        for each in group.trajectories:
            first = board_in(each.turns[0].context_ids)
            assert first.count("O") == player_of(group.task) and first.count("X") == 0
            for before, turn in zip(each.turns, each.turns[1:], strict=False):
                move = before.info["actions"][0]
                assert board_in(turn.context_ids)[int(move) - 1] == "X", "its own move is its own piece"
            assert all(
                turn.action_ids == tuple(spoken(f"<answer>{turn.info['actions'][0]}</answer>")) for turn in each.turns
            )
    for ours, theirs in zip(collected.groups[::2], collected.groups[1::2], strict=True):
        for one, other in zip(ours.trajectories, theirs.trajectories, strict=True):
            assert one.total_reward + other.total_reward == 1.0
            assert {one.turns[-1].info["result"], other.turns[-1].info["result"]} in ({"win", "loss"}, {"draw"})
            moves = [turn.info["actions"][0] for each in (one, other) for turn in each.turns]
            assert len(set(moves)) == len(moves), "the two play on one board"
    said = {(key.task.seed, key.task.params["begins"], key.member) for key in recorder.keys}
    assert len(said) == 16, "each side has an address of its own"


def test_match_opponent_is_in_no_group() -> None:
    tasks = source(both=False).draw(0, 3)
    ours, theirs = Recorder(), Recorder()
    collected = collect(collector(ours.policy, theirs.policy), tasks)
    assert [player_of(task) for task in tasks] == [0, 1, 0] and len({task.seed for task in tasks}) == 3
    assert [group.task for group in collected.groups] == tasks
    assert {key.task.seed: player_of(key.task) for key in ours.keys} == {task.seed: player_of(task) for task in tasks}
    assert {key.task.seed: player_of(key.task) for key in theirs.keys} == {
        task.seed: 1 - player_of(task) for task in tasks
    }
    turns = sum(each.num_turns for group in collected.groups for each in group.trajectories)
    assert turns == len(ours.keys)


class Slots:
    """A policy with so many places: one session more is an error, as there is no one who could make room."""

    def __init__(self, slots: int) -> None:
        self._policy, self._free = Recorder().policy, slots

    @asynccontextmanager
    async def open(self, key: EpisodeKey) -> AsyncIterator[Session]:
        assert self._free > 0
        self._free -= 1
        async with self._policy.open(key) as session:
            yield session
        self._free += 1


@pytest.mark.parametrize("in_flight", [2, 3, 5])
def test_matches_run_within_a_small_concurrency_limit(in_flight: int) -> None:
    tasks = source(both=True).draw(0, 4)
    collected = collect(collector(Slots(in_flight), in_flight=in_flight), tasks, group_size=5)
    assert [len(group.trajectories) for group in collected.groups] == [5] * 4


class Breaks:
    """A seat whose second turn breaks, or who never answers it."""

    def __init__(self, seat: Env, how: str) -> None:
        self._seat, self._how, self._turns = seat, how, 0
        self.start, self.close = seat.start, seat.close

    async def step(self, action: Message) -> StepResult:
        self._turns += 1
        if self._turns == 2:
            if self._how == "hangs":
                await asyncio.Event().wait()
            raise RuntimeError("it broke")
        return await self._seat.step(action)


@pytest.mark.parametrize("side", [0, 1])
def test_match_is_retried_if_one_player_fails(side: int) -> None:
    def make(task: Task, member: int, attempt: int) -> tuple[Env, Env]:
        pair: list[Env] = list(make_match(task, member, attempt))
        if member == 1 and attempt < 2:
            pair[side] = Breaks(pair[side], "raises")
        return pair[0], pair[1]

    collected = collect(collector(Recorder().policy, make=make, in_flight=2), source(both=True).draw(0, 2))
    assert [[each.attempt for each in group.trajectories] for group in collected.groups] == [[0, 2, 0, 0]] * 2
    assert collected.counts == {"env_errors": 2}


def test_match_that_always_fails_is_dropped_for_both_players() -> None:
    def make(task: Task, member: int, attempt: int) -> tuple[Env, Env]:
        first, second = make_match(task, member, attempt)
        return (Breaks(first, "raises"), second) if member == 0 else (first, second)

    collected = collect(collector(Recorder().policy, make=make), source(both=True).draw(0, 2), group_size=3)
    assert [[each.member for each in group.trajectories] for group in collected.groups] == [[1, 2]] * 2
    assert collected.counts == {"env_errors": 3, "dropped": 2}


def test_hanging_match_is_retried_for_both_players() -> None:
    def make(task: Task, member: int, attempt: int) -> tuple[Env, Env]:
        first, second = make_match(task, member, attempt)
        made.append(member)
        return (Breaks(first, "hangs") if len(made) == 1 else first), second

    made: list[int] = []
    tasks = source(both=True).draw(0, 2)
    timed = collector(Recorder().policy, make=make, limits=replace(limits(), timeout_s=0.3))
    collected = collect(timed, tasks, group_size=1)
    assert [len(group.trajectories) for group in collected.groups] == [1, 1] and len(made) == 2
    assert collected.counts == {"infra_errors": 1}


class SlowSession:
    """Samples for an hour before it answers."""

    def __init__(self, session: Session) -> None:
        self._session, self._since = session, math.inf

    @property
    def sampling_s(self) -> float:
        return max(0.0, asyncio.get_running_loop().time() - self._since)

    async def generate(self, ids: Sequence[int], sampling: Sampling, restart: bool = False) -> Completion:
        self._since = asyncio.get_running_loop().time()
        await asyncio.sleep(3600)
        return await self._session.generate(ids, sampling, restart)


@pytest.mark.parametrize("slow", [0, 1])
def test_match_truncates_only_the_player_that_samples_slowly(slow: int, monkeypatch: pytest.MonkeyPatch) -> None:
    follow_virtual_time(monkeypatch)

    class SlowSide:
        @asynccontextmanager
        async def open(self, key: EpisodeKey) -> AsyncIterator[Session]:
            async with Recorder().policy.open(key) as session:
                yield SlowSession(session) if player_of(key.task) == slow else session

    timed = collector(SlowSide(), limits=replace(limits(), timeout_s=60.0))
    collected = collect(timed, source(both=True).draw(0, 2), group_size=1)
    sides = [group.trajectories[0] for group in collected.groups]
    assert not collected.counts and sides[slow].status is Status.TRUNCATED_TIME
    assert sides[1 - slow].turns[-1].info["result"] in ("win", "draw", "loss")


def test_match_finishes_for_the_opponent_of_a_truncated_player() -> None:
    tasks = source(both=True).draw(0, 2)

    def wordy(key: EpisodeKey, turn: int, ids: list[int]) -> Sequence[int]:
        free = [cell for cell in board_in(ids) if cell.isdigit()]
        return spoken(("so " * 100 if player_of(key.task) == 0 else "") + f"<answer>{free[0]}</answer>")

    short = limits(max_new_tokens=500, max_tokens=800)
    full = collector(ScriptedEngine(wordy, [end_id()]), limits=short)
    ours, theirs = (group.trajectories[0] for group in collect(full, tasks, group_size=1).groups)
    assert ours.status is Status.TRUNCATED_TOKENS and theirs.turns[-1].info["result"] in ("win", "draw", "loss")


def test_match_propagates_user_errors() -> None:
    def make(task: Task, member: int, attempt: int) -> tuple[SelfPlayEnv, SelfPlayEnv]:
        raise UserError("no such game")

    with pytest.raises(UserError, match="no such game"):
        collect(collector(Recorder().policy, make=make), source(both=True).draw(0, 2))


def test_match_tasks_come_in_pairs_and_continue_across_steps() -> None:
    tasks = source(both=True).draw(3, 6)
    assert [player_of(task) for task in tasks] == [0, 1] * 3
    assert [task.seed for task in tasks[::2]] == [task.seed for task in tasks[1::2]] and len(
        {t.seed for t in tasks}
    ) == 3
    assert source(both=True).draw(3, 2, start=4) == tasks[4:]
    assert source(both=False).draw(3, 2, start=3) == source(both=False).draw(3, 5)[3:]
    held_out = source(both=True).first_tasks("validation", 2)
    assert all(task.params["begins"] == "random" for task in held_out), "evaluation is against the script"


def test_random_opening_moves_apply_to_training_tasks_only() -> None:
    tasks = replace(source(both=True), random_moves=4)
    assert [task.params["random_moves"] for task in tasks.draw(0, 4)] == [4] * 4
    assert tasks.first_tasks("validation", 2) == source(both=True).first_tasks("validation", 2)
    assert {task.params["random_moves"] for task in source(both=False).draw(0, 4)} == {0}
