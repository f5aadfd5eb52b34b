"""Values by branches agree with the exact values of states, and show where an episode was lost."""

import asyncio
import random
import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from episodes_for_tests import context, end_id, key_of, limits, renderer, says, spoken, task_of
from turnwise.core.protocols import Policy
from turnwise.core.random_streams import address
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Status, Trajectory
from turnwise.engine.scripted import ScriptedEngine
from turnwise.envs.frozen_lake.env import MOVES, FrozenLake, Lake, shortest_path
from turnwise.envs.grid import Cell
from turnwise.envs.registry import load_spec
from turnwise.evaluation.replay import Branches, find_lost_turn, play_branches
from turnwise.rollout.collect import Collector
from turnwise.rollout.recorded import DifferentContext, RecordedPolicy, context_at

TURNS = 5


def staggers() -> ScriptedEngine:
    """Return a policy that takes a random step each turn."""

    def script(key: EpisodeKey, turn: int, ids: list[int]) -> Sequence[int]:
        move = random.Random(address(key.address, len(ids))).choice(MOVES)
        return spoken(f"<answer>{move}</answer>")

    return ScriptedEngine(script, [end_id()])


def collector(policy: Policy) -> Collector:
    return Collector(
        policy=policy,
        make_env=load_spec("frozen_lake").make,
        context=context(),
        limits=limits(),
        in_flight=8,
        attempts=1,
        run_seed=0,
    )


def lake_task(index: int, *, slippery: bool = True) -> Task:
    return task_of("frozen_lake", index, slippery=slippery, frozen=0.8)


async def play(task: Task, policy: Policy) -> Trajectory:
    (episode,) = await collector(policy).episodes([key_of(task)])
    return episode


async def branch(episode: Trajectory, turn: int, policy: Policy, samples: int) -> Branches:
    return await play_branches(collector(policy), key_of(episode.task), episode, turn, samples=samples)


async def lake_of(task: Task) -> Lake:
    runner = load_spec("frozen_lake").make(task)
    await runner.start()
    assert isinstance(runner.env, FrozenLake)
    return runner.env.lake


def player_in(state: str) -> Cell:
    rows = [line.split() for line in state.splitlines()]
    return next((row, cells.index("P")) for row, cells in enumerate(rows) if "P" in cells)


def value(lake: Lake, cell: Cell, turns: int, moves: Sequence[str] = MOVES) -> float:
    """Return the probability that steps drawn from `moves` reach the goal. Slipping does not change random steps."""

    @cache
    def reach(cell: Cell, left: int) -> float:
        if cell == lake.goal or cell in lake.holes or not left:
            return float(cell == lake.goal)
        return statistics.fmean(reach(lake.move(cell, move), left - 1) for move in moves)

    return reach(cell, turns)


def test_values_by_branches_are_those_of_the_states() -> None:
    async def measure() -> list[tuple[float, Branches]]:
        pairs = []
        for index in range(8):
            episode = await play(lake_task(index), staggers())
            lake = await lake_of(episode.task)
            for number, turn in enumerate(episode.turns):
                true = value(lake, player_in(turn.info["state"]), TURNS - number)
                pairs.append((true, await branch(episode, number, staggers(), samples=48)))
        return pairs

    pairs = asyncio.run(measure())
    true, measured = [true for true, _ in pairs], [branches.success for _, branches in pairs]
    inside = [low <= true <= high for true, branches in pairs for low, high in [branches.interval]]
    assert len(pairs) >= 20 and max(true) > 0.3 and min(true) < 0.1  # states of many kinds
    assert statistics.correlation(true, measured) > 0.9
    assert statistics.fmean(inside) > 0.85
    assert abs(statistics.fmean(true) - statistics.fmean(measured)) < 0.03  # with stale luck, some are always 0 or 1


def test_environments_draw_new_randomness_in_every_branch() -> None:
    """A policy that always moves right leaves it to the ice where it goes: up, right or down."""
    right = says("<answer>Right</answer>")

    async def measure() -> list[tuple[float, Branches]]:
        pairs = []
        for index in range(24):
            episode = await play(lake_task(index), right)
            lake = await lake_of(episode.task)
            for number, turn in enumerate(episode.turns[:2]):
                true = value(lake, player_in(turn.info["state"]), TURNS - number, ("Up", "Right", "Down"))
                if 0.1 < true < 0.9:
                    pairs.append((true, await branch(episode, number, right, samples=48)))
        return pairs

    pairs = asyncio.run(measure())
    inside = [low <= true <= high for true, branches in pairs for low, high in [branches.interval]]
    assert len(pairs) >= 6 and statistics.fmean(inside) > 0.75


def test_branches_see_the_whole_context_of_their_turn() -> None:
    episode, seen = asyncio.run(play(lake_task(0), staggers())), list[list[int]]()

    def script(key: EpisodeKey, turn: int, ids: list[int]) -> Sequence[int]:
        seen.append(list(ids))
        return spoken("<answer>Left</answer>")

    asyncio.run(branch(episode, 1, ScriptedEngine(script, [end_id()]), 3))
    shared = list(context_at(episode.turns, 1))
    assert shared == [*episode.turns[0].context_ids, *episode.turns[0].action_ids, *episode.turns[1].context_ids]
    assert [ids for ids in seen if len(ids) <= len(shared)] == [shared] * 4  # computed once, and once for each branch


def knows_the_way(lake: Lake) -> ScriptedEngine:
    """Return a policy that reads its position and takes the shortest path from there."""

    def script(key: EpisodeKey, turn: int, ids: list[int]) -> Sequence[int]:
        rows = re.findall(r"[PO_G](?: [PO_G])+", renderer().decode(ids))[-lake.size :]
        (move, *_) = shortest_path(lake, player_in("\n".join(rows))) or ["Left"]
        return spoken(f"<answer>{move}</answer>")

    return ScriptedEngine(script, [end_id()])


def test_turn_that_lost_the_episode_is_found() -> None:
    """A policy that knows the way wins from everywhere on the way, until the agent walked into a hole."""

    async def measure(index: int) -> tuple[int, list[float]] | None:
        task = lake_task(index, slippery=False)
        lake = await lake_of(task)
        way, cell = shortest_path(lake, lake.start) or [], lake.start
        for turn, move in enumerate(way):
            if (holes := [move for move in MOVES if lake.move(cell, move) in lake.holes]) and 0 < turn < TURNS:
                fatal = says(*(f"<answer>{move}</answer>" for move in (*way[:turn], holes[0])))
                episode = await play(task, fatal)
                assert episode.status is Status.FAILED and len(episode.turns) == turn + 1
                branches = [await branch(episode, number, knows_the_way(lake), 2) for number in range(turn + 1)]
                return turn, [*(branches.success for branches in branches), 0.0]
            cell = lake.move(cell, move)
        return None

    episodes = [lost for index in range(12) if (lost := asyncio.run(measure(index))) is not None]
    assert len(episodes) >= 3
    for turn, values in episodes:
        assert values == [1.0] * (turn + 1) + [0.0]
        assert find_lost_turn(values) == turn


@pytest.mark.parametrize(
    ("values", "turn"),
    [([0.9, 0.8, 0.1, 0.0], 1), ([0.5, 0.5, 0.5], None), ([0.1, 0.9, 1.0], None), ([1.0, 0.0], 0), ([0.3], None)],
)
def test_lost_turn_is_where_the_value_fell_most(values: list[float], turn: int | None) -> None:
    assert find_lost_turn(values) == turn


def test_a_record_answers_only_what_it_was_asked() -> None:
    episode = asyncio.run(play(lake_task(0), staggers()))
    again = asyncio.run(play(lake_task(0), RecordedPolicy([episode])))
    assert again.turns == episode.turns
    for others in ([], [replace(episode, task=lake_task(1))]):
        with pytest.raises(DifferentContext, match="context of turn 1 differs"):
            asyncio.run(play(lake_task(1), RecordedPolicy(others)))
