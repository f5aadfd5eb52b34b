"""A human plays in the terminal and sees what a model would see: the way to debug an environment."""

import asyncio
from collections.abc import Callable

from turnwise.core.messages import assistant
from turnwise.core.protocols import StepResult
from turnwise.core.task import Task
from turnwise.envs.answers import SEPARATOR
from turnwise.envs.kind import EnvKind
from turnwise.envs.runner import TextEnvRunner

ReadLine = Callable[[], str]
Write = Callable[[str], None]


def play(kind: EnvKind, task: Task, read_line: ReadLine, write: Write) -> bool:
    """Plays one episode and says whether it was won. `q` or the end of input leaves, `hint` asks the solver."""
    return asyncio.run(_play(kind.make(task), read_line, write))


async def _play(runner: TextEnvRunner, read_line: ReadLine, write: Write) -> bool:
    for message in (await runner.start()).messages:
        write(message.content + "\n")
    write(f"Type actions (several with {SEPARATOR} between them), hint, or q.")
    total, turn = 0.0, 0
    while True:
        text = _next_answer(runner, read_line, write)
        if text is None:
            write("You left.")
            return False
        result = await runner.step(assistant(text))
        turn, total = turn + 1, total + result.reward
        for message in result.messages:
            write(message.content)
        write(f"turn {turn} of {runner.env.max_turns}: reward {result.reward:g}{', invalid' * result.invalid}\n")
        if result.over:
            write(f"{_ending(result)} Total reward {total:g}.")
            return result.success


def _next_answer(runner: TextEnvRunner, read_line: ReadLine, write: Write) -> str | None:
    """The next answer in the model's format; None to leave."""
    while True:
        try:
            line = read_line().strip()
        except EOFError:
            return None
        if line == "q":
            return None
        if line == "hint":
            write(_hint(runner))
        elif line:
            return line if "<answer>" in line else f"<answer>{line}</answer>"


def _hint(runner: TextEnvRunner) -> str:
    actions = runner.env.solve()
    return f"hint: {actions[0]}" if actions else "hint: none from here"


def _ending(result: StepResult) -> str:
    if result.success:
        return "Won."
    return "Lost." if result.terminated else "Out of turns or actions."
