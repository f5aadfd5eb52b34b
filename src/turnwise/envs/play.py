"""Play an environment in the terminal and see what a model would see, to debug it."""

import asyncio
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.core.messages import ImagePart, Message, TextPart, assistant
from turnwise.core.protocols import StepResult
from turnwise.core.task import Task
from turnwise.envs.answers import SEPARATOR
from turnwise.envs.runner import TextEnvRunner
from turnwise.envs.spec import EnvRunner, EnvSpec
from turnwise.envs.text_env import TextEnv
from turnwise.envs.tool_env import ToolEnv
from turnwise.pictures.image import image_to_text
from turnwise.tools.call_formats import parse_calls
from turnwise.user_code.source_location import failure_boundary

ReadLine = Callable[[], str]
Write = Callable[[str], None]

QUIT_WORDS = ("q", "quit", "exit")
"""Lines that end the episode, unless the environment has an action of that name."""


def play(spec: EnvSpec, task: Task, read_line: ReadLine, write: Write, preview_columns: int = 0) -> bool:
    """Play one episode; return whether it was won. QUIT_WORDS and the end of input quit, `hint` asks the solver.

    Images are saved as files; with `preview_columns` they are also drawn in the terminal, at most that wide.
    """
    return asyncio.run(_play_and_close(spec.make(task), read_line, write, preview_columns))


async def _play_and_close(runner: EnvRunner, read_line: ReadLine, write: Write, preview_columns: int) -> bool:
    """Report failures in one line; close servers and sandboxes in any case."""
    try:
        return await _play(runner, read_line, write, preview_columns)
    except (EnvironmentFailure, InfrastructureFailure) as failure:
        raise UserError(str(failure)) from failure
    finally:
        await runner.close()


async def _play(runner: EnvRunner, read_line: ReadLine, write: Write, preview_columns: int) -> bool:
    show = ImageDisplay(write, preview_columns).show
    opening = await runner.start()
    for message in opening.messages:
        show(message)
        write("")
    if opening.tools:  # a model sees them as its chat template formats them
        write(opening.tools_in_words + "\n")
    write(_how_to_play(runner))
    total, turn = 0.0, 0
    while True:
        text = _next_answer(runner, read_line, write)
        if text is None:
            write("You quit.")
            return False
        result = await runner.step(assistant(text))
        turn, total = turn + 1, total + result.reward
        for message in result.messages:
            show(message)
        limit = f" of {runner.turn_limit}" if isinstance(runner, TextEnvRunner) else ""
        write(f"turn {turn}{limit}: reward {result.reward:g}{', invalid' * result.invalid}\n")
        if result.over:
            write(f"{_ending(result)} Total reward {total:g}.")
            return result.success


class ImageDisplay:
    """Writes messages, and their images into a temporary folder that stays for the user to open them."""

    def __init__(self, write: Write, preview_columns: int) -> None:
        self._write, self._preview_columns = write, preview_columns
        self._folder: Path | None = None
        self._count = 0

    def show(self, message: Message) -> None:
        if not message.images:
            self._write(message.content)
        for part in message.parts if message.images else ():
            line = part.text.strip("\n") if isinstance(part, TextPart) else self._image(part)
            if line:  # empty: only the line break beside an image
                self._write(line)

    def _image(self, part: ImagePart) -> str:
        self._folder = self._folder or Path(tempfile.mkdtemp(prefix="turnwise-play-"))
        self._count += 1
        path = self._folder / f"{self._count}.png"
        path.write_bytes(part.data)
        drawn = f"{image_to_text(part.data, self._preview_columns)}\n" if self._preview_columns else ""
        return f"{drawn}[image: {path}]"


def _how_to_play(runner: EnvRunner) -> str:
    quit_word = next(iter(_quit_words(runner)), "Ctrl-D")
    if not isinstance(runner.env, TextEnv) or takes_replies(runner):
        return f"Type a whole reply of the agent, or {quit_word}."
    several = f"actions (several with {SEPARATOR} between them)" if runner.env.max_actions_per_turn > 1 else "an action"
    lines = "" if runner.env.action_names else " Several lines: from <answer> to </answer>."
    return f"Type {several}, hint, or {quit_word}.{lines}"


def _quit_words(runner: EnvRunner) -> list[str]:
    actions = [name.casefold() for name in runner.env.action_names] if isinstance(runner.env, TextEnv) else []
    return [word for word in QUIT_WORDS if word not in actions]


def _next_answer(runner: EnvRunner, read_line: ReadLine, write: Write) -> str | None:
    """Read the next answer in the model's format; None to quit."""
    while True:
        try:
            line = _read(read_line).strip()
        except EOFError:
            return None
        if line in _quit_words(runner):
            return None
        if not isinstance(runner.env, TextEnv) or takes_replies(runner):
            return line
        if line == "hint":
            write(find_hint(runner.env))
        elif line.startswith("```"):
            return _block(line, read_line, lambda last: last.strip() == "```")
        elif "<answer>" in line and "</answer>" not in line:
            return _block(line, read_line, lambda last: "</answer>" in last)
        elif line:
            return format_reply(runner, line)


def format_reply(runner: EnvRunner, text: str) -> str:
    """Return what a person typed as a reply in the model's format: an action alone becomes an answer."""
    if takes_replies(runner) or "<answer>" in text or _is_call(runner, text):
        return text
    return f"<answer>{text}</answer>"


def takes_replies(runner: EnvRunner) -> bool:
    """Return whether the agent's whole reply is the action, without answer tags."""
    return not isinstance(runner, TextEnvRunner) or runner.takes_replies


def _read(read_line: ReadLine) -> str:
    """Read a line that Ctrl-C interrupts: asyncio's handler only cancels the task, which `input` does not notice."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return read_line()
    finally:
        signal.signal(signal.SIGINT, handler)


def _is_call(runner: EnvRunner, line: str) -> bool:
    return isinstance(runner.env, ToolEnv) and parse_calls(line, runner.env.params.style).attempted


def _block(first: str, read_line: ReadLine, is_last: Callable[[str], bool]) -> str | None:
    """Read an answer of several lines."""
    lines = [first]
    while len(lines) == 1 or not is_last(lines[-1]):
        try:
            lines.append(_read(read_line))
        except EOFError:
            return None
    return "\n".join(lines)


def find_hint(env: TextEnv) -> str:
    with failure_boundary(f"{type(env).__name__}.solve"):
        actions = env.solve()
    return f"hint: {actions[0]}" if actions else "hint: none from here"


def _ending(result: StepResult) -> str:
    if result.success:
        return "Won."
    return "Lost." if result.terminated else "Out of turns or actions."
