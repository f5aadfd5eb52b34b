"""Agents that are programs: started for one episode, with bounded output, and killed with all that they started."""

import asyncio
import os
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from turnwise.core.errors import UserError
from turnwise.network.secrets import VARIABLE, reject_keys
from turnwise.tools.process_guard import GRACE_S, KILL_S
from turnwise.tools.process_tree import (
    MARKER,
    PROCESS_GUARD,
    describe_exit,
    inherited_environment,
    kill_marked,
    terminate,
)

MAX_OUTPUT = 65_536
"""Bytes kept of each stream: the end, where results and errors are."""
MAX_TASK = 100_000
"""Bytes of a task that fits into a command line."""
STOP_S = GRACE_S + KILL_S + 1.0
"""Seconds for the process guard to kill everything."""
TEMPORARY_FAILURE = 75
"""Exit status EX_TEMPFAIL: the agent reports that a service it needs failed."""
NOT_STARTED = (125, 126, 127)
"""Exit statuses of docker, podman and shells for programs that could not be started."""
SIGNALLED = 128
"""Exit statuses above this are of programs that were killed by a signal, such as for lack of memory."""
WITHOUT_INPUT = ("sh", "-c", 'exec "$@" < /dev/null', "sh")
"""Prefix of a command: the process guard watches the end of our pipe, and agents that find an input may read it."""
TASK, TASK_FILE = "{task}", "{task_file}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    status: int
    """Exit status; 128 + N if it was killed by signal N."""
    output: str
    """End of the standard output."""
    errors: str
    """End of the standard error."""

    @property
    def is_infrastructure_failure(self) -> bool:
        """True if it was not started, was killed, or reports a temporary failure: not the fault of the policy."""
        return self.status in (TEMPORARY_FAILURE, *NOT_STARTED) or self.status > SIGNALLED

    def describe(self) -> str:
        """Return how it ended, with the last line of its errors or output."""
        lines = [line.strip() for text in (self.errors, self.output) for line in text.splitlines()[-1:] if line.strip()]
        return describe_exit(self.status) + (f": {lines[0][:200]}" if lines else "")


def split_command(command: str) -> tuple[str, ...]:
    """Split a command line and check that its program exists. Raises UserError."""
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UserError(f"agent.command {command!r}: {error}: close the quotes.") from error
    if not words:
        raise UserError("agent.command is empty: give a command such as python my_agent.py {task}.")
    reject_keys(words, option="agent.command", fix="name its variable in agent.pass_env")
    if shutil.which(words[0]) is None:
        raise UserError(f"agent.command: there is no program {words[0]}: install it, or give its path.")
    return words


def build_environment(pass_env: Sequence[str]) -> dict[str, str]:
    """Return the variables that an agent inherits. Raises UserError if one in `pass_env` is not set."""
    for name in pass_env:
        if not VARIABLE.fullmatch(name):
            raise UserError(f"agent.pass_env: {name!r} is not the name of an environment variable: give names only.")
        if name not in os.environ:
            raise UserError(f"agent.pass_env: the environment variable {name} is not set: export it, or remove it.")
    return inherited_environment() | {name: os.environ[name] for name in pass_env}


async def run_program(
    command: Sequence[str], *, task: str, folder: Path, environment: Mapping[str, str]
) -> ProgramResult:
    """Run a command in `folder` until it exits. However this call ends, nothing that the program started is left.

    `task` is JSON. It replaces {task} in each word of the command, and is in a file whose path replaces {task_file}.
    """
    if len(task) > MAX_TASK and any(TASK in word for word in command):
        raise UserError(f"A task has {len(task)} bytes, too many for a command line: write {TASK_FILE} for {TASK}")
    file = folder / "task.json"
    file.write_text(task, encoding="utf-8")
    words = [word.replace(TASK_FILE, str(file)).replace(TASK, task) for word in command]
    marker = uuid4().hex
    process = await asyncio.create_subprocess_exec(
        *PROCESS_GUARD,
        str(os.getpid()),
        *WITHOUT_INPUT,
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**environment, MARKER: marker},
        cwd=folder,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        output, errors, status = await asyncio.gather(
            _read_tail(process.stdout), _read_tail(process.stderr), process.wait()
        )
    except BaseException:
        await _kill(process, marker)
        raise
    if status < 0:  # the process guard itself was killed
        kill_marked(marker)
        status = SIGNALLED - status
    return ProgramResult(status=status, output=output, errors=errors)


async def _read_tail(stream: asyncio.StreamReader) -> str:
    tail = b""
    while data := await stream.read(1 << 16):
        tail = (tail + data)[-MAX_OUTPUT:]
    return tail.decode("utf-8", "replace")


async def _kill(process: asyncio.subprocess.Process, marker: str) -> None:
    """Let the guard kill the program's descendants, and wait until they are gone, even if cancelled again."""
    terminate(process)
    ending, deadline = asyncio.ensure_future(process.wait()), time.monotonic() + STOP_S
    while not ending.done() and (left := deadline - time.monotonic()) > 0:
        with suppress(asyncio.CancelledError):
            await asyncio.wait({ending}, timeout=left)
    if not ending.done() or ending.result() < 0:  # the process guard itself was stopped or killed
        kill_marked(marker)
        with suppress(ProcessLookupError):
            process.kill()
