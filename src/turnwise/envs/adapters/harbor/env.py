"""Harbor tasks: an instruction, a shell in the task's environment, and tests that decide the reward."""

import asyncio
import math
import random
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from turnwise.core.errors import UserError
from turnwise.core.messages import Message
from turnwise.core.protocols import StepResult
from turnwise.core.task import Split
from turnwise.envs.adapters.harbor.task_folder import TaskSet, load_tasks
from turnwise.envs.param_setting import param_setting
from turnwise.envs.runner import pluralize
from turnwise.envs.text_env import Outcome
from turnwise.envs.tool_env import ToolEnv, ToolEnvRunner
from turnwise.settings.section import Positive
from turnwise.tools.tool import Tool

if TYPE_CHECKING:
    from turnwise.envs.adapters.harbor.containers import Containers
    from turnwise.envs.adapters.harbor.episode import Machine, Verdict
    from turnwise.envs.adapters.harbor.shell_tool import AgentShell

DONE = "done"
PROGRAMS = ("podman", "docker")
"""Programs that run containers."""
VIEW = (
    "folder",
    "images",
    "containers",
    "skip_unsupported",
    "command_timeout_s",
    "memory_mb",
    "disk_mb",
    "success_at",
    "reward_key",
)
"""Parameters that do not change the task, or are a path of this machine."""


class HarborRunner(ToolEnvRunner):
    """Run the tests when an episode ends, also at the limit of turns: what the agent did until then counts."""

    async def step(self, action: Message) -> StepResult:
        result = await super().step(action)
        if not result.over:
            return result
        with self._attribute_errors("verify"):
            verdict = await self.tool_env.verify()
        success = verdict.reward >= self.tool_env.params.success_at
        info = {**result.info, "success": success}
        info |= {"rewards": dict(verdict.parts)} if verdict.parts else {}
        info |= {"problem": verdict.reason} if verdict.reason else {}
        return replace(result, reward=result.reward + verdict.reward, success=success, info=info)

    async def close(self) -> None:
        await super().close()
        await self.tool_env.end()


class Harbor(ToolEnv):
    """Solve the task with the shell. Its files are tested when you answer."""

    max_turns = 20
    runner = HarborRunner
    view_params = (*ToolEnv.view_params, *VIEW)

    class Params(ToolEnv.Params):
        folder: str
        """Folder of Harbor tasks, at any depth: each has instruction.md, task.toml, environment/ and tests/."""
        style: Literal["hermes", "llama", "mistral", "answer"] = "hermes"
        """Format of tool calls: hermes (also Qwen), llama, mistral or answer (small models)."""
        max_tool_calls: Positive = 20
        """Maximum number of commands per episode."""
        max_output: Positive = 4000
        """Characters of a command's output that the agent sees; longer output is truncated in the middle."""
        command_timeout_s: Annotated[float, Field(gt=0)] = 30.0
        """Time limit of one command, in seconds. The task's agent.timeout_sec limits all commands together."""
        memory_mb: Positive = 1024
        """Memory of all processes of an episode, in MiB."""
        disk_mb: Positive = 128
        """Size of all files of an episode, in MiB. The files that are tested may have three quarters of it."""
        success_at: float = 1.0
        """Least reward of a successful episode."""
        reward_key: str = "reward"
        """Name of the reward, in tests that write several to reward.json."""
        skip_unsupported: bool = False
        """Leave out tasks that cannot run here, in place of an error."""
        images: tuple[str, ...] = ()
        """Further base images that need nothing but a shell and the usual programs, such as registry/base:1."""
        containers: Literal["podman", "docker"] | None = None
        """Program that runs the tasks which the sandbox cannot: podman or docker. Default: such tasks are refused."""

    params: Params

    def __init__(self, params: Mapping[str, Any] | None = None, rng: random.Random | None = None) -> None:
        super().__init__(params, rng)
        self.shell: AgentShell | None = None
        self._verify: Callable[[str], Awaitable[Verdict]] | None = None
        self.seconds_left = math.inf
        self.commands: list[str] = []
        """Commands that the agent has run."""

    @classmethod
    def check(cls, params: Any) -> None:
        super().check(params)
        tasks = tasks_of(params)
        if tasks.unsupported and not (params.skip_unsupported and tasks.tasks):
            first, total = tasks.unsupported[0], len(tasks.unsupported) + len(tasks.tasks)
            fix = "" if params.containers else how_to_run_in_containers()
            if not params.skip_unsupported:
                fix += f" To leave out such tasks, set {param_setting('skip_unsupported')}."
            count = f"{len(tasks.unsupported)} of {pluralize(total, 'task')} cannot run here"
            raise UserError(f"{count}. {first.name}: {first.problem}.{fix}")
        build_images(params)

    @classmethod
    def notes(cls, params: Any) -> list[str]:
        tasks = tasks_of(params)
        return [f"note: {task.name} is left out: {task.problem}" for task in tasks.unsupported]

    @classmethod
    def size(cls, params: Any, split: Split) -> int:
        return len(tasks_of(params).of_split(split))

    @classmethod
    def make_tools(cls, params: Any) -> Sequence[Tool]:
        from turnwise.envs.adapters.harbor.shell_tool import ShellTool

        limits = {"max_chars": params.max_output, "max_calls": params.max_tool_calls}
        return [ShellTool(timeout_s=params.command_timeout_s, **limits)]

    def tool_state(self) -> "Harbor":
        return self

    def rules(self) -> str:
        return (
            f"{type(self).__doc__} Processes end with their command, and there is no network. "
            f"When the task is done, answer {DONE}."
        )

    async def reset(self, rng: random.Random) -> str:
        tasks = tasks_of(self.params)
        chosen = tasks.tasks if self.split is None else tasks.of_split(self.split)
        self.task = chosen[self.index % len(chosen)]
        self.seconds_left = self.task.settings.agent.timeout_sec or math.inf
        await self._open()
        return self.task.instruction

    async def _open(self) -> None:
        """Start the task's shell: in the sandbox, or in a container if the task needs one."""
        if self.task.container:
            containers = containers_of(self.params)
            container = await containers.open(self.task)
            self.shell, self._verify = container, partial(containers.verify, self.task, container)
        else:
            machine = machine_of(self.params)
            shell = await machine.open(self.task)
            self.shell, self._verify = shell, partial(machine.verify, self.task, shell)

    def step(self, action: str) -> Outcome:
        """End the episode. The runner adds the reward of the tests."""
        return Outcome(text="The files are tested.", reward=0.0, over=True, success=False)

    async def verify(self) -> "Verdict":
        if self._verify is None:
            raise RuntimeError("the end of an episode before its reset")
        return await self._verify(self.params.reward_key)

    async def end(self) -> None:
        if self.shell is not None and (closing := self.shell.close()) is not None:
            await closing

    def solve(self) -> list[str] | None:
        """Run solve.sh as one command, then answer. Tasks without one that stands alone are given up."""
        script = self.task.solution
        return [DONE] if script is None or script in self.commands else [self.call("shell", command=script)]

    def explain(self, actions: Sequence[str]) -> str:
        return "The task is done." if list(actions) == [DONE] else "I solve the task with these commands."

    def start_key(self) -> str:
        return self.task.key


def tasks_of(params: Any) -> TaskSet:
    return load_tasks(params.folder, params.images, containers=params.containers is not None)


def how_to_run_in_containers() -> str:
    """Return the advice to run tasks in containers, if this machine has a program for them."""
    program = next((name for name in PROGRAMS if shutil.which(name)), None)
    return f" To run it in a container, set {param_setting('containers')} {program}." if program else ""


@cache
def _containers(program: str, memory_mb: int, disk_mb: int) -> "Containers":
    from turnwise.envs.adapters.harbor.containers import Containers

    return Containers(program=program, memory_mb=memory_mb, disk_mb=disk_mb)


def containers_of(params: Any) -> "Containers":
    """Return what starts the containers of all episodes of a process with these limits."""
    if params.containers is None or shutil.which(params.containers) is None:
        raise UserError(f"{param_setting('containers')}: there is no program {params.containers}. Install it first.")
    return _containers(params.containers, params.memory_mb, params.disk_mb)


@cache
def _machine(memory_mb: int, disk_mb: int, packages: tuple[str, ...]) -> "Machine":
    from turnwise.envs.adapters.harbor.episode import Machine

    return Machine(memory_mb=memory_mb, disk_mb=disk_mb, packages=packages)


def machine_of(params: Any) -> "Machine":
    """Return the machine that all episodes of a process with these limits share."""
    return _machine(params.memory_mb, params.disk_mb, tasks_of(params).packages)


def build_images(params: Any) -> None:
    """Build the images that run commands, before the run. Raises UserError if one fails."""
    machine, tasks = machine_of(params), tasks_of(params).tasks
    contained = [task for task in tasks if task.container]

    async def build() -> None:
        await machine.build_all(task for task in tasks if not task.container)
        if contained:
            await containers_of(params).build_all(contained)

    with ThreadPoolExecutor(max_workers=1) as thread:  # this thread may have an event loop
        thread.submit(lambda: asyncio.run(build())).result()
