"""Tasks of an agent: the rows of a file. The agent itself runs the episodes, through the gateway."""

import json
import random
from functools import lru_cache
from typing import Any

from turnwise.core.errors import UserError
from turnwise.core.random_streams import address
from turnwise.core.task import Split, Task
from turnwise.envs.agent.settings import AGENT_ENV
from turnwise.envs.seeds import FIRST_SEED, SEEDS_PER_SPLIT, seed_for
from turnwise.envs.spec import EnvSpec
from turnwise.envs.text_env import Outcome, StrictParams, TextEnv
from turnwise.envs.tools.task_rows import Row, TaskTable


class AgentTasks(TextEnv):
    """Tasks of an agent that runs its own episodes."""

    class Params(StrictParams):
        tasks: str
        """File of the tasks (agent.tasks)."""

    params: Params

    @classmethod
    def check(cls, params: Any) -> None:
        load_tasks(params.tasks)

    @classmethod
    def size(cls, params: Any, split: Split) -> int:
        return len(load_tasks(params.tasks).of_split(split))

    def reset(self, rng: random.Random) -> str:
        raise RuntimeError("an agent runs its own episodes: use AgentCollector")

    def step(self, action: str) -> Outcome:
        raise RuntimeError("an agent runs its own episodes: use AgentCollector")


AGENT_SPEC = EnvSpec(name=AGENT_ENV, id=AGENT_ENV, cls=AgentTasks)


def task_of_value(value: Any, split: Split) -> Task:
    """Return the task of a value that a program passes to `tw.Trainer`. Its seed is a hash of the value."""
    try:
        seed = seed_for(split, address("agent task", value) % SEEDS_PER_SPLIT)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"A task is not a JSON value ({error}): pass texts, numbers, dictionaries or lists.") from None
    return Task(env=AGENT_ENV, seed=seed, split=split, params={"task": value})


def value_of_task(task: Task) -> Any:
    """Return the value that `task_of_value` was given."""
    return task.params["task"]


def find_row(task: Task) -> Row:
    """Return the row of a task, as the agent gets it: without its column `split`."""
    rows = load_tasks(task.params["tasks"]).of_split(task.split)
    row = rows[(task.seed - FIRST_SEED[task.split]) % len(rows)]
    return {name: value for name, value in row.items() if name != "split"}


@lru_cache(maxsize=8)
def load_tasks(path: str) -> TaskTable:
    """Load the rows of `agent.tasks`. Rows are the same task if all their columns but `split` are equal."""
    return TaskTable(path, setting="agent.tasks", check=_check_object, get_key=_task_key)


def _task_key(row: Row) -> str:
    return json.dumps({name: value for name, value in row.items() if name != "split"}, sort_keys=True)


def _check_object(row: Any, where: str) -> Row:
    if not isinstance(row, dict):
        raise UserError(f'{where} is not a JSON object: write {{"question": ...}} with any columns.')
    return row
