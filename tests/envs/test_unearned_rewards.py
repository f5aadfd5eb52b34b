"""No environment and no reward pays an agent that knows nothing as success.

Four agents play every environment of the catalogue and answer to every built-in reward: one echoes the question, one is
silent, one gives all options in one answer, and one says as much as fits.

In countdown the answer is an expression by design: it has to use the numbers and reach the target, and no text of the
prompt does.
"""

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from turnwise.core.task import Task
from turnwise.envs.catalogue import CATALOGUE
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for
from turnwise.envs.spec import EnvSpec
from turnwise.rewards.factory import REWARD_TYPES, build_rubric
from turnwise.rewards.rubric import Submission
from turnwise.rewards.scoring import score_submission
from turnwise.rewards.services import RewardServices
from turnwise.sandbox.types import SandboxUnavailable
from turnwise.testing.agents import IGNORANT, ignorant_episodes

TASKS = 3
"""Tasks of each environment."""
ROWS = [{"question": f"What is {number} * 17?", "answer": str(17 * number)} for number in range(11, 31)]


def params_of(kind: EnvSpec, folder: Path) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if kind.name == "tools":
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        given = {"tasks": str(folder / "rows.jsonl"), "reward": "math"}
    return kind.check_params(given)


@pytest.mark.parametrize("agent", IGNORANT)
@pytest.mark.parametrize(
    "name", [name for name in CATALOGUE if name not in ("openenv", "harbor", "verifiers")]
)  # paid by others
def test_environments_pay_no_agent_that_knows_nothing(
    name: str, agent: str, tmp_path: Path, optional_part: Callable[..., None]
) -> None:
    kind = load_spec(name)
    if kind.install_command:
        optional_part(f"{name} needs {kind.install_command}", *kind.cls.needs)
    params = params_of(kind, tmp_path)
    slow = bool(kind.cls.needs) or name == "tools"  # packages and rewards run in processes that take seconds to start
    for index in range(1 if slow else TASKS):
        task = Task(env=name, seed=seed_for("train", index), params=params, split="train")
        for text, result in asyncio.run(ignorant_episodes(partial(kind.make, task), agent, step_s=600)):
            assert not result.success, f"task {index} pays for {text[:200]!r}"


DATABASE = "create table t (name, age); insert into t values ('Ann', 31), ('Bob', 42);"
PARTS: dict[str, tuple[dict[str, Any], str, dict[str, Any], list[str]]] = {
    "exact_match": ({}, "Which is larger, Ann or Bob?", {"answer": "Bob"}, ["Ann", "Bob"]),
    "f1": ({}, "Which is larger, Ann or Bob?", {"answer": "Bob"}, ["Ann", "Bob"]),
    "math": ({}, "What is (57 - 54) * 97 - 353?", {"answer": "-62"}, [str(number) for number in range(-99, 100)]),
    "unit_tests": (
        {},
        "Write f, so that f(2) is 4.",
        {"tests": ["assert f(2) == 4", "assert f(3) == 9"]},
        [f"def f(x): return {value}" for value in ("4", "9", "x", "x + 2")],
    ),
    "sql": (
        {},
        "How old is Bob, in the table t(name, age)?",
        {"sql": "select age from t where name = 'Bob'"},
        [f"select age from t where age > {age}" for age in (0, 10, 20, 50)],
    ),
    "regex": ({"pattern": "Bob"}, "Which is larger, Ann or Bob?", {}, ["Ann", "Bob"]),
    "length": ({"soft": 10, "hard": 20}, "Say something.", {}, ["a", "b"]),
    "repetition": ({}, "Say something.", {}, ["a", "b"]),
}
"""Options, question, row and possible answers. What a judge may not be told is in test_judge_hostile.py."""


def test_all_reward_types_are_attacked() -> None:
    assert {*PARTS, "judge"} == set(REWARD_TYPES)


@pytest.mark.parametrize("agent", IGNORANT)
@pytest.mark.parametrize("use", PARTS)
def test_rewards_pay_no_agent_that_knows_nothing(
    use: str, agent: str, tmp_path: Path, optional_part: Callable[..., None]
) -> None:
    options, question, row, answers = PARTS[use]
    if use == "sql":
        with closing(sqlite3.connect(tmp_path / "d.db")) as connection:
            connection.executescript(DATABASE)
        row = {**row, "database": str(tmp_path / "d.db")}

    async def score() -> list[tuple[str, float]]:
        services = RewardServices()
        rubric = build_rubric([{"use": use, **options}], lambda name: pytest.fail(name), services)
        try:
            return [
                (text, (await score_submission(rubric, Submission(question=question, answer=text, row=row))).reward)
                for text in IGNORANT[agent](question, answers)
            ]
        finally:
            await services.close()

    try:
        scores = asyncio.run(score())
    except SandboxUnavailable as error:
        optional_part(str(error))
    for text, value in scores:
        assert value < 1, f"{use} pays for {text[:200]!r}"
        assert value <= 0 or REWARD_TYPES[use].worst == 0, "a penalty is never paid"
