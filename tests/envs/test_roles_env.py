"""RolesEnv: each role sees its own observations, earns its own rewards, and goes on when another one leaves."""

import asyncio
import random
import re
from collections.abc import Mapping
from typing import Any

import pytest

from turnwise.core.errors import EnvironmentFailure, UserError
from turnwise.core.messages import assistant
from turnwise.core.protocols import StepResult
from turnwise.core.task import Task
from turnwise.envs.registry import validate_env_class
from turnwise.envs.roles.env import RoleRunner, RolesEnv, open_match
from turnwise.envs.roles.outcome import RolesOutcome, finish, tell
from turnwise.envs.seeds import seed_for
from turnwise.envs.spec import EnvSpec


class Auction(RolesEnv):
    """Two bidders name a price, and a seller takes one of them."""

    roles = ("anna", "ben", "seller")
    max_turns = 2

    def begin(self, rng: random.Random) -> RolesOutcome:
        self.values = {"anna": rng.randint(1, 9), "ben": rng.randint(1, 9)}
        self.bids: dict[str, int] = {}
        return tell({name: f"It is worth {value} to you." for name, value in self.values.items()})

    def act(self, role: str, action: str) -> RolesOutcome:
        if role != "seller":
            self.bids[role] = int(action)
            return tell({"seller": f"{role} bids {action}."})
        if action == "again":
            return tell({"anna": "Bid again."}, next="anna")
        if action not in self.bids:
            raise ValueError(f"{action} has not bid")
        gains = {action: float(self.values[action] - self.bids[action]), "seller": float(self.bids[action])}
        return finish(dict.fromkeys(self.roles, f"Sold to {action}."), rewards=gains, winners=(action, "seller"))

    def random_move(self, role: str, rng: random.Random) -> str | None:
        return "anna" if role == "seller" else str(rng.randint(1, 3))


def spec_of(cls: type[RolesEnv]) -> EnvSpec:
    return EnvSpec(name="auction", id="python:Auction", cls=validate_env_class(cls))


def runner_of(cls: type[RolesEnv] = Auction, **params: Any) -> RoleRunner:
    spec = spec_of(cls)
    task = Task(env="auction", seed=seed_for("train", 1), params=spec.check_params(params))
    runner = spec.make(task)
    assert isinstance(runner, RoleRunner)
    return runner


def reply(text: str) -> Any:
    return assistant(f"<answer>{text}</answer>")


def text_of(result: Any) -> str:
    return str(result.messages[-1].content)


async def play(replies: Mapping[str, list[str]], players: Mapping[str, str] | None = None) -> dict[str, list[Any]]:
    """Let each role give its replies, then leave; return what it was shown."""
    shown: dict[str, list[Any]] = {}

    async def agent(role: str, seat: RoleRunner) -> None:
        shown[role] = [await seat.start()]
        for text in replies.get(role, []) if not shown[role][0].over else ():
            shown[role].append(await seat.step(reply(text)))
        await seat.close()

    async with asyncio.TaskGroup() as match:
        for role, seat in open_match(runner_of(), players or {}):
            match.create_task(agent(role, seat))
    return shown


def test_roles_have_their_own_observations_and_rewards() -> None:
    shown = asyncio.run(play({"anna": ["2"], "ben": ["3"], "seller": ["ben"]}))
    start = {role: text_of(first) for role, (first, *_) in shown.items()}
    assert start["anna"].startswith("You are the anna.\nIt is worth ") and "bids" not in start["anna"]
    assert start["seller"] == "You are the seller.\nanna bids 2.\nben bids 3."
    value = int(start["ben"].split("worth ")[1][0])
    ends: dict[str, StepResult] = {role: results[-1] for role, results in shown.items()}
    assert {role: end.reward for role, end in ends.items()} == {"anna": 0.0, "ben": value - 3.0, "seller": 3.0}
    assert {role: end.success for role, end in ends.items()} == {"anna": False, "ben": True, "seller": True}
    assert all(end.terminated and text_of(end) == "Sold to ben." for end in ends.values())


def test_illegal_action_leaves_the_turn_with_its_role() -> None:
    shown = asyncio.run(play({"anna": ["2"], "ben": ["3"], "seller": ["carl", "anna"]}))
    refused, accepted = shown["seller"][1:]
    assert refused.invalid and "carl has not bid" in text_of(refused) and not refused.over
    assert accepted.terminated and shown["anna"][-1].success


def test_role_may_name_the_next_one() -> None:
    shown = asyncio.run(play({"anna": ["2", "4"], "ben": ["3", "5"], "seller": ["again", "anna"]}))
    assert text_of(shown["anna"][1]) == "Bid again." and text_of(shown["seller"][1]) == "anna bids 4.\nben bids 5."


def test_role_that_leaves_ends_the_episode_of_all() -> None:
    shown = asyncio.run(play({"anna": ["x"], "ben": ["1"]}))  # anna's bid is not a number, and she gives up
    assert shown["anna"][-1].invalid
    assert text_of(shown["ben"][0]).endswith("The anna has left.")
    assert shown["ben"][0].over and shown["seller"][0].over


def test_script_plays_on_for_a_role_that_left() -> None:
    class Patient(Auction):
        """The auction goes on without those who leave."""

        def leave(self, role: str) -> RolesOutcome:
            return tell({"seller": f"{role} has left."}, next=role)

    async def run() -> tuple[Any, Any]:
        seats = dict(open_match(runner_of(Patient), {}))
        await seats["anna"].start()
        await seats["anna"].close()  # without a bid: the script bids for her
        await seats["ben"].start()
        ben = asyncio.create_task(seats["ben"].step(reply("1")))
        seller = await seats["seller"].start()
        end = await seats["seller"].step(reply("anna"))
        await ben
        return seller, end

    seller, end = asyncio.run(asyncio.wait_for(run(), 5))
    assert re.search(r"anna has left\.\nanna bids [123]\.\nben bids 1\.", text_of(seller)) and end.success


def test_scripted_roles_have_no_episode() -> None:
    shown = asyncio.run(play({"seller": ["anna"]}, {"anna": "script", "ben": "script"}))
    assert list(shown) == ["seller"] and "ben bids" in text_of(shown["seller"][0])


def test_one_agent_plays_all_roles_in_turn_without_a_role() -> None:
    async def run() -> list[Any]:
        runner = runner_of()
        return [await runner.start(), *[await runner.step(reply(text)) for text in ("1", "2", "anna")]]

    start, first, second, last = asyncio.run(run())
    assert text_of(start).startswith("You are the anna.") and text_of(first).startswith("You are the ben.")
    assert text_of(second) == "You are the seller.\nanna bids 1.\nben bids 2."
    assert last.terminated and last.success


def test_chosen_role_plays_against_scripts() -> None:
    async def run() -> Any:
        runner = runner_of(role="seller")
        return [await runner.start(), await runner.step(reply("ben"))]

    start, end = asyncio.run(run())
    assert "anna bids" in text_of(start) and end.terminated and end.success


def test_start_state_does_not_depend_on_role_or_players() -> None:
    async def values(**params: Any) -> dict[str, int]:
        runner = runner_of(**params)
        await runner.start()
        env = runner.env
        assert isinstance(env, Auction)
        return env.values

    states = [asyncio.run(values(**params)) for params in ({}, {"role": "ben"}, {"players": {"anna": "script"}})]
    assert states[0] == states[1] == states[2]


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"players": {"carl": "script"}}, "names the role 'carl'. Auction has anna, ben, seller."),
        ({"role": "carl"}, "names the role 'carl'"),
        ({"players": dict.fromkeys(Auction.roles, "script")}, "leaves no role to train"),
    ],
)
def test_wrong_roles_are_refused(params: dict[str, Any], problem: str) -> None:
    spec = spec_of(Auction)
    with pytest.raises(UserError, match=problem):
        spec.check_resources(spec.check_params(params))


class Alone(Auction):
    """A match of one role."""

    roles = ("anna",)


def test_environment_needs_two_roles() -> None:
    spec = spec_of(Alone)
    with pytest.raises(UserError, match="Name two roles or more"):
        spec.check_resources(spec.check_params({}))


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (None, r"act returned None: return tell\(...\) or finish\(...\)"),
        (tell({"carl": "hi"}), "act names the text 'carl' as a role, and the roles are anna, ben, seller"),
        (tell(next="carl"), "act names the text 'carl' as a role"),
        (tell({"ben": 3}), "act returned 3 as an observation: return a text"),  # type: ignore[dict-item]
        (tell("hi"), "act returned the text 'hi' as observations: give a value for each role"),  # type: ignore[arg-type]
        (tell(rewards={"anna": float("nan")}), "act returned nan as the reward of the anna"),
    ],
)
def test_invalid_outcomes_are_the_environments_fault(outcome: Any, problem: str) -> None:
    class Broken(Auction):
        """Returns what it should not."""

        def act(self, role: str, action: str) -> RolesOutcome:
            return outcome  # type: ignore[no-any-return]

    async def run() -> None:
        runner = runner_of(Broken)
        await runner.start()
        await runner.step(reply("1"))

    with pytest.raises(EnvironmentFailure, match=problem):
        asyncio.run(run())


def test_scripts_that_never_stop_are_the_environments_fault() -> None:
    class Endless(Auction):
        """The two bidders bid for ever."""

        def act(self, role: str, action: str) -> RolesOutcome:
            return tell(next="ben" if role == "anna" else "anna")

    async def run() -> None:
        await runner_of(Endless, role="seller").start()

    with pytest.raises(EnvironmentFailure, match="scripted roles acted 1000 times in a row"):
        asyncio.run(run())


def test_tasks_of_roles_differ_in_the_role_alone() -> None:
    task = Task(env="auction", seed=seed_for("train", 0), params={"max_turns": 2})
    assert task.as_role("ben").params == {"max_turns": 2, "role": "ben"} and task.as_role("ben").seed == task.seed
