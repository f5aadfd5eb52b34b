"""Properties of every generator: tasks can be solved, splits are disjoint, a seed gives the same task everywhere."""

import asyncio
import json
import os
import subprocess
import sys

import generators_for_tests
import pytest
from generators_for_tests import CASES, Case, digests, openings, solved

from turnwise.core.random_streams import address
from turnwise.core.task import Split
from turnwise.envs.registry import ENVIRONMENTS, load_spec

SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))
COUNT = 12 if SOAK == 1 else 500 * SOAK
"""Tasks of each; `make soak` has 10,000."""
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def test_cases_cover_every_generator() -> None:
    assert {case.env for case in CASES} == {
        name for name in ENVIRONMENTS if not load_spec(name).cls.needs and not load_spec(name).required_params
    }


@every_case
def test_solver_solves_every_task(case: Case) -> None:
    async def results() -> list[bool]:
        return [(await solved(case, index)).success for index in range(COUNT)]

    assert sum(asyncio.run(results())) >= case.success * COUNT


@every_case
def test_splits_share_no_task(case: Case) -> None:
    """Different seeds give different tasks, though in a small environment they may look alike."""
    tasks = [case.task(split, index) for split in SPLITS for index in range(COUNT)]
    assert len({task.seed for task in tasks}) == len({address("start", *task.parts) for task in tasks}) == 3 * COUNT


@pytest.mark.parametrize("case", [case for case in CASES if case.split_start_states], ids=lambda case: case.name)
def test_splits_share_no_start_state(case: Case) -> None:
    train, validation, test = (set(openings(case, split, COUNT)) for split in SPLITS)
    assert train and validation and test
    assert not (train & validation or train & test or validation & test)


def test_generated_environments_split_their_start_states() -> None:
    """The others have too few (a bandit, an empty board), or hide what differs."""
    own = {name for name in ENVIRONMENTS if not load_spec(name).cls.needs and load_spec(name).cls.split_start_states}
    made = {
        "frozen_lake",
        "sokoban",
        "rubiks_cube",
        "sudoku",
        "countdown",
        "math_code",
        "code_tests",
        "text_to_sql",
        "web_shop",
    }
    assert own == made


@pytest.mark.parametrize("case", [case for case in CASES if case.large], ids=lambda case: case.name)
def test_large_environments_rarely_repeat_start_states(case: Case) -> None:
    starts = {text for split in SPLITS for text in openings(case, split, COUNT)}
    assert len(starts) >= 0.999 * 3 * COUNT


def test_tasks_do_not_depend_on_the_hash_seed() -> None:
    count = 4 if SOAK == 1 else COUNT
    here = digests(count)
    assert len(set(here.values())) == len(CASES)
    for hash_seed in ("1",) if SOAK == 1 else ("1", "2"):
        there = subprocess.run(
            [sys.executable, generators_for_tests.__file__, str(count)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        )
        assert json.loads(there.stdout) == here
