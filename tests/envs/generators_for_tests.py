"""Every generator with the parameters that change what it makes; as a program it prints a digest of the tasks of each.

python generators_for_tests.py COUNT
"""

import asyncio
import hashlib
import json
import sys
from dataclasses import dataclass, field
from typing import Any

from turnwise.core.messages import assistant
from turnwise.core.protocols import StepResult
from turnwise.core.task import Split, Task
from turnwise.envs.registry import load_spec
from turnwise.envs.runner import TextEnvRunner
from turnwise.envs.seeds import seed_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    env: str
    params: dict[str, Any] = field(default_factory=dict)
    success: float = 1.0
    """The solver's share of it, at least."""
    large: bool = False
    """There are so many start states that of a thousand tasks hardly two have the same one."""

    @property
    def name(self) -> str:
        return " ".join([self.env, *(f"{name}={value}" for name, value in self.params.items())])

    @property
    def split_start_states(self) -> bool:
        return load_spec(self.env).cls.split_start_states

    def task(self, split: Split, index: int) -> Task:
        return Task(env=self.env, params=self.params, split=split, seed=seed_for(split, index))

    def make(self, split: Split, index: int) -> TextEnvRunner:
        return load_spec(self.env).make(self.task(split, index))


CASES = (
    Case(env="bandit"),
    Case(env="bandit", params={"names": "test", "reversed": True}),
    Case(env="frozen_lake"),
    Case(env="frozen_lake", params={"slippery": True}, success=0.0),  # it may slip into a hole
    Case(env="frozen_lake", params={"size": 8}, large=True),
    Case(env="sokoban"),
    Case(env="sokoban", params={"size": 8, "boxes": 2}, large=True),
    Case(env="countdown"),
    Case(env="countdown", params={"fewest": 6, "most": 6}, large=True),
    Case(env="sudoku"),
    Case(env="sudoku", params={"size": 9}, large=True),
    Case(env="game_2048"),
    Case(env="rubiks_cube"),
    Case(env="tic_tac_toe", params={"draw_is_success": True}),
    Case(env="connect_four", success=0.9),  # it looks six plies ahead and is not perfect
    Case(env="twenty_questions"),
    Case(env="twenty_questions", params={"words": "split"}),
    Case(env="guess_city"),
    Case(env="lookup"),
    Case(env="math_code"),
    Case(env="math_code", params={"level": 3, "style": "hermes"}),
    Case(env="code_tests"),
    Case(env="code_tests", params={"steps": 4}, large=True),
    Case(env="text_to_sql"),
    Case(env="text_to_sql", params={"level": "tiny", "style": "answer"}),
    Case(env="web_shop", large=True),
)


def openings(case: Case, split: Split, count: int) -> list[str]:
    """Each task's first messages, followed by the secret word in guessing games."""

    async def opening(index: int) -> str:
        runner = case.make(split, index)
        said = [message.content for message in (await runner.start()).messages]
        await runner.close()
        return "\n".join([*said, vars(runner.env).get("secret", "")])

    async def together() -> list[str]:
        return [await opening(index) for index in range(count)]

    return asyncio.run(together())


async def solved(case: Case, index: int) -> StepResult:
    """The end of an episode that the solver plays; it is asked again when it has planned no further."""
    runner = case.make("train", index)
    await runner.start()
    plan, a_turn = runner.env.solve(), runner.env.max_actions_per_turn
    assert plan and len(plan) <= runner.env.action_budget, f"task {index} cannot be solved"
    while True:
        now, plan = plan[:a_turn], plan[a_turn:]
        result = await runner.step(assistant(runner.env.reply(now)))
        assert not result.invalid, f"task {index}: {now}"
        if result.over:
            await runner.close()
            return result
        plan = plan or runner.env.solve()


def digests(count: int) -> dict[str, str]:
    """By case: of its first tasks."""
    return {
        case.name: hashlib.blake2b("\0".join(openings(case, "train", count)).encode(), digest_size=16).hexdigest()
        for case in CASES
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(digests(int(sys.argv[1]))))
