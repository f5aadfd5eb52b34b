"""Episodes played by a script: at random for the warm-up of tiny, by the solver for demonstrations."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from turnwise.core.chance import address
from turnwise.core.errors import UserError
from turnwise.core.messages import ToolSpec, assistant
from turnwise.core.protocols import StepResult
from turnwise.core.task import Task
from turnwise.data.demonstrations import Exchange
from turnwise.envs.kind import EnvKind
from turnwise.envs.runner import TextEnvRunner
from turnwise.envs.seeds import RANGE, seed_for
from turnwise.envs.text_env import TextEnv
from turnwise.envs.tool_env import ToolEnv
from turnwise.rewards.rubric import deciding_part_alone
from turnwise.rollout.attempts import tried
from turnwise.rollout.collect import attributed, making

ATTEMPTS = 10
"""At an episode that something breaks which is not the player."""
PATIENCE = 20
"""Tries for each success that is asked for, at most."""

Script = Callable[[TextEnv, str], str]
"""(the environment, what it said last) -> the answer."""


class MakeEnv(Protocol):
    def __call__(self, *, attempt: int) -> TextEnvRunner: ...


async def played(make: MakeEnv, make_script: Callable[[], Script]) -> tuple[list[Exchange], StepResult]:
    """A whole episode, and how it ended. What broke is played again, as in a rollout."""

    async def play(luck: int) -> tuple[list[Exchange], StepResult]:
        with making():
            env = make(attempt=luck)
        try:
            return await _episode(env, make_script())
        finally:
            await env.close()

    found = await tried(ATTEMPTS, play)
    if isinstance(found, Exception):
        raise found
    return found


async def _episode(env: TextEnvRunner, script: Script) -> tuple[list[Exchange], StepResult]:
    def answer(said: str) -> str:
        with attributed("its solver or random answer"):
            return script(env.env, said)

    observation = await env.start()
    opening = Exchange(
        messages=observation.messages,
        answer=answer(observation.messages[-1].content),
        tools=observation.tools,
        tools_in_words=observation.tools_in_words,
    )
    exchanges = [opening]
    while True:
        result = await env.step(assistant(exchanges[-1].answer))
        if result.over:
            return exchanges, result
        exchanges.append(Exchange(messages=result.messages, answer=answer(result.messages[-1].content)))


async def opening_tools(worlds: Sequence[tuple[EnvKind, dict[str, Any]]]) -> tuple[ToolSpec, ...]:
    """Those that an episode tells a model of at its opening; none where several environments have their own."""
    kind, params = worlds[0]
    if len(worlds) > 1 or not issubclass(kind.cls, ToolEnv):
        return ()
    env = kind.make(Task(env=kind.name, params=params, seed=seed_for("train", 0)))
    try:
        return tuple((await env.start()).tools)
    finally:
        await env.close()


def solution(think: bool) -> Script:
    """The solver's next actions, as many as a turn takes; `think`: with a true line about them before."""

    def answer(env: TextEnv, _: str) -> str:
        actions = env.solve()
        if not actions:
            raise UserError(
                f"{type(env).__name__} has no solver that finds a way: give sft.demos a run or a JSONL file"
            )
        now = actions[: env.max_actions_per_turn]
        return env.reply(now, think=env.explain(now) if think else None)

    return answer


async def solved(
    worlds: Sequence[tuple[EnvKind, dict[str, Any]]],
    *,
    count: int,
    seed: int,
    think: bool,
    show: Callable[[int, int], None],
) -> list[list[Exchange]]:
    """That many episodes of the training split in which the solver succeeded, as many tries of each environment."""
    found: list[list[Exchange]] = []
    for number in range(PATIENCE * count):
        if len(found) == count:
            return found
        kind, params = worlds[number % len(worlds)]
        index = address("demonstration", seed, number) % RANGE
        task = Task(env=kind.name, params=params, seed=seed_for("train", index))
        with deciding_part_alone():
            exchanges, result = await played(partial(kind.make, task), partial(solution, think))
        if result.success:
            found.append(exchanges)
        show(len(found), count)
    if not found:
        raise UserError(f"the solver of {worlds[0][0].name} never succeeded: give sft.demos a run or a JSONL file")
    return found
