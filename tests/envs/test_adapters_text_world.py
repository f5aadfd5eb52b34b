"""TextWorld: generated games, with observations from facts or in prose."""

import asyncio
import random
from importlib.util import find_spec

import pytest

from turnwise.core.errors import UserError
from turnwise.core.messages import assistant
from turnwise.core.task import Task
from turnwise.envs.adapters.package_envs import TextWorldEnv
from turnwise.envs.adapters.text_world_facts import describe_facts
from turnwise.envs.answers import format_answer
from turnwise.envs.registry import spec_of


@pytest.fixture
def installed(optional_part) -> None:
    if find_spec("textworld") is None:
        optional_part(f"a package is missing: {spec_of(TextWorldEnv).install_command}", part="textworld")


def begun(seed=0, member=0, **params):
    kind = spec_of(TextWorldEnv)
    runner = kind.make(Task(env=kind.name, seed=seed, params=params), member=member)
    runner.opening = asyncio.run(runner.start())
    return runner


def acted(runner, *actions):
    return [asyncio.run(runner.step(assistant(format_answer([action])))) for action in actions]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("params", [{}, {"rooms": 6, "objects": 12, "quest_length": 5, "objective": "goal"}], ids=str)
def test_text_world_solver_beats_random_play(params) -> None:
    won = 0
    for seed in range(3):
        runner = begun(seed, **params)
        way = runner.env.solve()
        assert 1 <= len(way) <= params.get("quest_length", 3)
        results = acted(runner, *way)
        assert results[-1].success and sum(each.reward for each in results) == 1 and results[-1].terminated
        assert not any(each.over for each in results[:-1])
        other, rng = begun(seed, **params, max_turns=6), random.Random(seed)
        while not (result := acted(other, other.env.random_action(rng))[0]).over:
            pass
        won += result.success
    assert won < 3


@pytest.mark.usefixtures("installed")
def test_text_world_observation_follows_the_commands() -> None:
    runner = next(runner for runner in map(begun, range(9)) if any(map(is_of_a_thing, runner.env.moves)))
    assert runner.env.text.startswith("Quest: ") and "You are in the " in runner.env.text
    listed = runner.env.text.partition("Commands: ")[2].rstrip(".").split(", ")
    assert tuple(listed) == runner.env.moves and runner.env.solve()[0] in listed
    going = next(command for command in listed if is_of_a_thing(command))
    thing = going.split(" ", 1)[1].split(" from ")[0]
    carried = thing in _carried(runner.env.text)
    (result,) = acted(runner, going.upper())
    assert (thing in _carried(result.messages[0].content)) != carried, "and case does not matter"
    assert "Quest: " not in result.messages[0].content
    assert "Commands: " not in begun(1, commands=False).env.text


def is_of_a_thing(command: str) -> bool:
    return command.startswith(("drop ", "take "))


def _carried(text: str) -> str:
    return text.partition("You carry: ")[2].partition("\n")[0]


@pytest.mark.usefixtures("installed")
def test_text_world_rejects_other_commands() -> None:
    runner = begun()
    way = runner.env.solve()
    wrong = acted(runner, "fly to the moon", "go go", "")
    assert all(each.invalid and each.reward == 0 for each in wrong) and runner.env.solve() == way


@pytest.mark.usefixtures("installed")
def test_text_world_progress_reward_is_optional() -> None:
    runner = begun(progress_reward=0.1)
    results = acted(runner, *runner.env.solve())
    assert [each.reward for each in results] == pytest.approx([*[0.1] * (len(results) - 1), 1.1]) and len(results) > 1


@pytest.mark.usefixtures("installed")
def test_text_world_games_fit_the_limits() -> None:
    assert all(len(begun(seed, max_turns=3).env.solve()) <= 3 for seed in range(3))
    with pytest.raises(UserError, match=r"^env\.params\.max_turns: .*: raise it\.$"):
        begun(max_turns=2)


@pytest.mark.usefixtures("installed")
def test_text_world_can_use_its_own_prose() -> None:
    runner = begun(narrator="inform7")
    assert "-= " in runner.env.text and "Quest: " in runner.env.text
    results = acted(runner, *runner.env.solve())
    assert results[-1].success and results[-1].reward == 1
    assert all(">" not in each.messages[0].content and "RESTART" not in each.messages[0].content for each in results)


def test_describe_facts_lists_visible_objects() -> None:
    facts = [
        ("at", "P", "hall"),
        ("at", "box", "hall"),
        ("at", "chest", "hall"),
        ("at", "rack", "hall"),
        ("at", "stool", "attic"),
        ("in", "coin", "box"),
        ("in", "gem", "chest"),
        ("on", "hat", "rack"),
        ("in", "key", "I"),
        ("open", "box"),
        ("locked", "chest"),
        ("closed", "gate"),
        ("north_of", "attic", "hall"),
        ("south_of", "hall", "attic"),
        ("west_of", "yard", "hall"),
        ("link", "hall", "gate", "yard"),
    ]
    assert describe_facts(facts) == (
        "You are in the hall.\nExits: north, west (gate, closed).\n"
        "Here: box (open, holds coin), chest (locked), rack (holds hat).\nYou carry: key."
    )
    assert (
        describe_facts([("at", "P", "cell")])
        == "You are in the cell.\nExits: none.\nHere: nothing.\nYou carry: nothing."
    )
