"""Matches of several roles: one group for each trained role, frozen policies in their seats, nobody waits for ever."""

import random
import re
from collections.abc import Sequence
from typing import Any

import pytest

from episodes_for_tests import context, end_id, limits, renderer, spoken
from turnwise.core.protocols import Policy
from turnwise.core.task import EpisodeKey
from turnwise.engine.scripted import ScriptedEngine
from turnwise.envs.roles.env import RoleRunner, RolesEnv, open_match
from turnwise.envs.roles.outcome import RolesOutcome, finish, tell
from turnwise.envs.spec import EnvSpec
from turnwise.record.metrics import rollout_metrics
from turnwise.rollout.collect import CollectedGroups
from turnwise.rollout.roles import RolesCollector
from turnwise.rollout.tasks import EnvMixEntry, RoleTasks
from virtual_time_for_tests import run_in_virtual_time


class Offer(RolesEnv):
    """The proposer keeps some of ten, and the responder accepts or refuses."""

    roles = ("proposer", "responder")
    max_turns = 2

    def begin(self, rng: random.Random) -> RolesOutcome:
        return tell({"proposer": "Keep how many of ten?"})

    def act(self, role: str, action: str) -> RolesOutcome:
        if role == "proposer":
            self.kept = int(action)
            if self.kept == 10:
                return finish({"responder": "Nothing is left."}, rewards={"proposer": 1.0}, winners=["proposer"])
            return tell({"responder": f"You get {10 - self.kept}. Accept?"})
        taken = action == "yes"
        rewards = {"proposer": self.kept / 10, "responder": 1 - self.kept / 10} if taken else {}
        return finish(rewards=rewards, winners=self.roles if taken else ())


def role_of(task: Any) -> str:
    return str(task.params["role"])


SPEC = EnvSpec(name="offer", id="python:Offer", cls=Offer)


class Agent:
    """Keeps a fixed share and accepts everything; remembers for whom it played, and what it read."""

    def __init__(self, keeps: int = 6) -> None:
        self.seats: list[tuple[int, str]] = []
        self.read: dict[str, str] = {}
        self._keeps = keeps
        self.policy = ScriptedEngine(self._say, [end_id()])

    def _say(self, key: EpisodeKey, turn: int, ids: list[int]) -> Sequence[int]:
        text = renderer().decode(list(ids))
        asked = re.findall(r"You are the (\w+)\.", text)[-1]
        self.seats.append((key.member, asked))
        self.read[asked] = text
        return spoken(f"<answer>{self._keeps if asked == 'proposer' else 'yes'}</answer>")


def collector(policy: Policy, trained: tuple[str, ...], frozen: dict[str, Policy], **given: Any) -> RolesCollector:
    def make_roles(task: Any, member: int, attempt: int) -> list[tuple[str, RoleRunner]]:
        runner = SPEC.make(task.as_role(""), member, attempt)
        assert isinstance(runner, RoleRunner)
        return open_match(runner, task.params.get("players", {}))

    settings = {"in_flight": 8, "attempts": 2, "run_seed": 0, "limits": limits()} | given
    return RolesCollector(
        policy=policy, frozen=frozen, trained=trained, make_roles=make_roles, context=context(), **settings
    )


def tasks_of(*roles: str, count: int = 4, **params: Any) -> list[Any]:
    mix = (EnvMixEntry(env="offer", params=SPEC.check_params(params)),)
    return RoleTasks(mix=mix, run_seed=0, roles=roles).draw(0, count)


def collect(runner: RolesCollector, tasks: list[Any], group_size: int = 3) -> CollectedGroups:
    return run_in_virtual_time(runner.collect(tasks, group_size=group_size, round=0))


def test_match_gives_a_group_to_each_role() -> None:
    tasks, agent = tasks_of("proposer", "responder"), Agent()
    collected = collect(collector(agent.policy, ("proposer", "responder"), {}), tasks)
    assert [role_of(task) for task in tasks] == ["proposer", "responder"] * 2
    assert [group.task for group in collected.groups] == tasks and not collected.counts
    rewards = [{trajectory.total_reward for trajectory in group.trajectories} for group in collected.groups]
    assert rewards == [{0.6}, {0.4}] * 2
    assert len(agent.seats) == 2 * 2 * 3  # each match is played once
    assert "Keep how many" not in agent.read["responder"] and "Accept?" not in agent.read["proposer"]


def test_metrics_are_given_by_role() -> None:
    collected = collect(collector(Agent().policy, ("proposer", "responder"), {}), tasks_of("proposer", "responder"))
    metrics = rollout_metrics(collected.groups)
    assert metrics["rollout/reward/offer:proposer"] == pytest.approx(0.6)
    assert metrics["rollout/reward/offer:responder"] == pytest.approx(0.4)


def test_frozen_policy_plays_its_role_alone() -> None:
    ours, theirs = Agent(), Agent(keeps=9)
    tasks = tasks_of("responder", count=2, players={"proposer": "runs/x"})
    collected = collect(collector(ours.policy, ("responder",), {"proposer": theirs.policy}), tasks)
    assert {role for _, role in ours.seats} == {"responder"} and {role for _, role in theirs.seats} == {"proposer"}
    assert [role_of(group.task) for group in collected.groups] == ["responder"] * 2
    assert {round(member.total_reward, 6) for group in collected.groups for member in group.trajectories} == {0.1}


def test_role_that_never_acted_is_left_out_and_not_counted_as_lost() -> None:
    tasks = tasks_of("proposer", "responder", count=2)
    collected = collect(collector(Agent(keeps=10).policy, ("proposer", "responder"), {}), tasks)
    assert [role_of(group.task) for group in collected.groups] == ["proposer"]
    assert len(collected.groups[0].trajectories) == 3 and not collected.counts and collected.unplayed == 3


@pytest.mark.parametrize("in_flight", [2, 3])
def test_matches_fit_into_few_places(in_flight: int) -> None:
    tasks = tasks_of("proposer", "responder", count=6)
    collected = collect(collector(Agent().policy, ("proposer", "responder"), {}, in_flight=in_flight), tasks)
    assert [len(group.trajectories) for group in collected.groups] == [3] * 6


def test_refills_draw_other_matches() -> None:
    mix = (EnvMixEntry(env="offer", params=SPEC.check_params({})),)
    source = RoleTasks(mix=mix, run_seed=0, roles=("proposer", "responder"))
    first, second = source.draw(0, 4), source.draw(0, 4, start=4)
    assert {task.seed for task in first}.isdisjoint(task.seed for task in second)
    assert [task.seed for task in first[::2]] == [task.seed for task in first[1::2]]
