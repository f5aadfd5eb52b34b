"""Command-line agents on Harbor tasks: the agent runs in the task's environment, then the task's tests decide."""

import math
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError
from turnwise.core.task import Task
from turnwise.envs.adapters.harbor.env import Harbor, tasks_of
from turnwise.envs.adapters.harbor.episode import Machine
from turnwise.envs.adapters.harbor.task_folder import HarborTask
from turnwise.envs.agent.harness import Harness, ModelAccess
from turnwise.envs.param_setting import param_setting
from turnwise.envs.seeds import FIRST_SEED
from turnwise.envs.text_env import Outcome, params_model
from turnwise.gateway.agent_process import ProgramResult
from turnwise.gateway.agents import Access, AgentCrash, AgentExit
from turnwise.sandbox import files as sandbox_files
from turnwise.sandbox.python_install import SOCKETS, AgentAccess
from turnwise.sandbox.shell import AGENT_PATH, Shell, ShellResult

PORT = 14141
"""Port of the gateway inside of a task, on its own loopback interface."""
RELAY = "relay.py"
MAX_OUTPUT = 65_536
"""Characters kept of what an agent prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborEpisode:
    """A task for an agent, and the parameters of its environment."""

    task: HarborTask
    params: Any


def find_harbor_episode(task: Task) -> HarborEpisode:
    """Return the Harbor task that a task of the run stands for."""
    params = params_model(Harbor).model_validate(dict(task.params))
    tasks = tasks_of(params).of_split(task.split)
    return HarborEpisode(task=tasks[(task.seed - FIRST_SEED[task.split]) % len(tasks)], params=params)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """An agent's program, and what of this machine it needs to run."""

    command: tuple[str, ...]
    folders: tuple[str, ...]
    path: tuple[str, ...] = ()
    """Folders to look for programs in, besides those of the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborAgent:
    """A command-line agent that plays Harbor tasks."""

    harness: Harness
    program: Program
    sockets: Path
    """Folder with the gateway's Unix socket."""
    max_tokens: int
    max_new_tokens: int
    timeout_s: float
    hint = "Its program must use the address of its environment: does this version still read it?"

    async def run(self, access: Access, task: Any, folder: Path) -> AgentExit:
        episode: HarborEpisode = task
        machine = self._machine(episode.params)
        shell = await machine.open(episode.task)
        try:
            result = await self._play(access, episode.task, shell)
            if result.lost:
                raise AgentCrash(f"the agent's machine was killed: {result.lost}")
            verdict = await machine.verify(episode.task, shell, episode.params.reward_key)
        finally:
            shell.close()
        success = verdict.reward >= episode.params.success_at
        outcome = Outcome(reward=verdict.reward, success=success, text=verdict.reason, parts=dict(verdict.parts))
        program = ProgramResult(status=result.exit_code, output=result.output, errors="")
        crash = AgentCrash(program.describe()) if self._is_crash(result) else None
        return AgentExit(value=outcome, program=program, crash=crash, timed_out=result.timed_out)

    def _machine(self, params: Any) -> Machine:
        access = AgentAccess(folders=self.program.folders, sockets=str(self.sockets))
        return _machine(params.memory_mb, params.disk_mb, tasks_of(params).packages, access)

    def _is_crash(self, result: ShellResult) -> bool:
        """With train_on crash, the tests decide also after an error: they see what the agent did until then."""
        return bool(result.exit_code) and not result.timed_out and "crash" not in self.harness.train_on

    async def _play(self, access: Access, task: HarborTask, shell: Shell) -> ShellResult:
        url = f"http://127.0.0.1:{PORT}"
        model = ModelAccess(url=url, max_tokens=self.max_tokens, max_new_tokens=self.max_new_tokens)
        launch = self.harness.launch(task.instruction, model)
        relay = ("python3", "-I", "-S", f"{SOCKETS}/{RELAY}", str(PORT), f"{SOCKETS}/{access.socket}")
        environment = {**replace(access, url=url).variables, **launch.environment}
        path = ":".join([*self.program.path, dict(shell.image.env).get("PATH", AGENT_PATH)])
        return await shell.run(
            shlex.join([*relay, *self.program.command, *launch.arguments]),
            timeout_s=min(self.timeout_s, task.settings.agent.timeout_sec or math.inf),
            env={**environment, "PATH": path},
            max_chars=MAX_OUTPUT,
        )


def build_harbor_agent(
    harness: Harness, sockets: Path, *, max_tokens: int, max_new_tokens: int, timeout_s: float
) -> HarborAgent:
    """Return the agent. `sockets`: folder with the gateway's Unix socket. Raises UserError without its program."""
    program = find_program(harness)
    shutil.copyfile(Path(sandbox_files.__file__).with_name(RELAY), sockets / RELAY)
    return HarborAgent(
        harness=harness,
        program=program,
        sockets=sockets,
        max_tokens=max_tokens,
        max_new_tokens=max_new_tokens,
        timeout_s=timeout_s,
    )


@cache
def _machine(memory_mb: int, disk_mb: int, packages: tuple[str, ...], access: AgentAccess) -> Machine:
    return Machine(memory_mb=memory_mb, disk_mb=disk_mb, packages=packages, agent=access)


def find_program(harness: Harness) -> Program:
    """Find the agent's program and the folders that it is installed in. Raises UserError."""
    name = harness.program_name
    located = shutil.which(name)
    if located is None:
        raise UserError(
            f"PATH has no program {name}, which agent {harness.kind} is: install it with "
            f"`{harness.install_command}`, or add its folder to PATH."
        )
    entry, file = Path(located).absolute(), Path(located).resolve()
    environment = next((above for path in (entry, file) for above in path.parents if _is_venv(above)), None)
    if environment is not None:
        script = environment / "bin" / file.name if not entry.is_relative_to(environment) else entry
        return Program(command=(str(script),), folders=(str(environment), *_base_python(environment)))
    if "node_modules" in file.parts:
        modules = Path(*file.parts[: file.parts.index("node_modules") + 1])
        return Program(command=(str(file),), folders=(str(modules), *_node()), path=tuple(_node_path()))
    return Program(command=(str(file),), folders=(str(file),))


def check_tasks_are_hidden(program: Program, folder: str) -> None:
    """Raise UserError if the agent could read the tests of its tasks among its own files."""
    tasks = Path(folder).expanduser().resolve()
    for readable in program.folders:
        if tasks.is_relative_to(Path(readable).resolve()):
            raise UserError(
                f"{tasks} is in {readable}, which the agent reads as its program: move the tasks elsewhere."
            )


def check_tasks_need_no_container(params: Mapping[str, Any]) -> None:
    """Raise UserError if tasks would run in containers, where a command-line agent has no gateway."""
    if params.get("containers") is not None:
        raise UserError(
            f"{param_setting('containers')} has an effect only with the tool shell. Remove it, or remove --agent."
        )


def _is_venv(folder: Path) -> bool:
    return (folder / "pyvenv.cfg").is_file()


def _base_python(environment: Path) -> Sequence[str]:
    """Return the Python that a virtual environment belongs to, unless sessions have it anyway."""
    lines = (environment / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    home = next((line.partition("=")[2].strip() for line in lines if line.partition("=")[0].strip() == "home"), "")
    prefix = Path(home).resolve().parent
    ours = (Path(sys.base_prefix).resolve(), Path("/usr"), Path("/"))
    return () if not home or prefix in ours else (str(prefix),)


def _node_path() -> list[str]:
    node = shutil.which("node")
    return [] if node is None else [str(Path(node).resolve().parent)]


def _node() -> Sequence[str]:
    """Return the folder of Node.js, unless it is among the programs that sessions have."""
    return [path for path in map(str, (Path(folder).parent for folder in _node_path())) if path not in ("/usr", "/")]
