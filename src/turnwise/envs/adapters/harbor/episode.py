"""The shells of an episode: the agent's, in the task's image, and the verifier's, which the agent cannot reach."""

import json
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from turnwise.core.errors import RewardFailure, UserError
from turnwise.envs.adapters.harbor.dockerfile import Copy, Run, read_tree
from turnwise.envs.adapters.harbor.installs import SKIP_INSTALLS, has_installs
from turnwise.envs.adapters.harbor.task_folder import HarborTask
from turnwise.sandbox.files import FileEntry, Image, pack
from turnwise.sandbox.python_install import AgentAccess
from turnwise.sandbox.shared import SharedSandbox
from turnwise.sandbox.shell import CLEAN_PATH, DiskTooFull, Shell, ShellResult, open_shell, shell_limits
from turnwise.sandbox.types import SandboxLimits
from turnwise.text.truncation import first_line, shorten

TESTS, LOGS, SOLUTION = "/tests", "/logs", "/solution"
"""Folders that are the verifier's. What an agent writes there never reaches it."""
REWARD_TEXT, REWARD_JSON = f"{LOGS}/verifier/reward.txt", f"{LOGS}/verifier/reward.json"
MAX_REWARD_BYTES = 1 << 16
MAX_REWARD = 1e9
KEPT_IMAGES = 256
AGENT_PROCESSES = 1024
"""Processes and threads in the shell of a command-line agent, whose runtime starts some for each core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of a task's tests."""

    reward: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """All rewards of reward.json, by name."""
    reason: str = ""
    """Why the tests did not run."""


class Machine:
    """Starts shells for the tasks of a run, and keeps their images."""

    def __init__(
        self, *, memory_mb: int, disk_mb: int, packages: tuple[str, ...], agent: AgentAccess | None = None
    ) -> None:
        """`packages`: Python packages that shells have. `agent`: what the agent's shell has besides."""
        self.limits: SandboxLimits = shell_limits(memory_mb=memory_mb, disk_mb=disk_mb)
        self.sandbox = SharedSandbox(self.limits, packages, own_root=True)
        self.agent_limits = self.limits if agent is None else replace(self.limits, processes=AGENT_PROCESSES)
        self.agents = self.sandbox
        if agent is not None:
            self.agents = SharedSandbox(self.agent_limits, packages, own_root=True, agent=agent)
        self.images: OrderedDict[str, Image] = OrderedDict()

    async def open(self, task: HarborTask) -> Shell:
        """Start the agent's shell."""
        image = await self.image(task)
        return await open_shell(await self.agents.session(), image, self.agent_limits)

    async def image(self, task: HarborTask) -> Image:
        """Return the image of a task, building it at first use. Raises UserError if a RUN instruction fails."""
        if task.key not in self.images:
            self.images[task.key] = await self._build(task)
            if len(self.images) > KEPT_IMAGES:
                self.images.popitem(last=False)
        return self.images[task.key]

    async def build_all(self, tasks: Iterable[HarborTask]) -> None:
        """Build the images with commands, and then end the sandbox: the run has another event loop."""
        try:
            for task in tasks:
                if any(isinstance(step, Run) for step in task.plan.steps):
                    await self.image(task)
        finally:
            self.sandbox.kill()

    async def _build(self, task: HarborTask) -> Image:
        """Copy the files and run the commands of a Dockerfile, in its order."""
        plan = task.plan
        num_copies = next((number for number, step in enumerate(plan.steps) if isinstance(step, Run)), len(plan.steps))
        copies = [step for step in plan.steps[:num_copies] if isinstance(step, Copy)]
        archive = pack([entry for step in copies for entry in step.entries])
        for step in plan.steps[num_copies:]:
            archive = await self._run_step(task, step, Image(archive=archive, workdir="/"))
        return Image(archive=archive, env=dict(plan.env), workdir=plan.workdir)

    async def _run_step(self, task: HarborTask, step: Copy | Run, image: Image) -> bytes:
        shell = await open_shell(await self.sandbox.session(), image, self.limits)
        try:
            if isinstance(step, Copy):
                await shell.load(pack(step.entries))
            else:
                shell.cwd = step.workdir
                result = await shell.run(
                    SKIP_INSTALLS + step.command if has_installs(step.command) else step.command,
                    timeout_s=task.settings.environment.build_timeout_sec,
                    env=step.env,
                )
                if result.exit_code:
                    raise UserError(f"{task.name}: {step.where} failed here: {_describe(result)}")
            return await shell.save()
        except DiskTooFull as error:
            raise UserError(f"{task.name}: its image is too large: {error}. Set env.params.disk_mb.") from error
        finally:
            shell.close()

    async def verify(self, task: HarborTask, agent: Shell, reward_key: str) -> Verdict:
        """End the agent's session and run the tests on its files. Raises RewardFailure if they give no number."""
        try:
            files = await agent.save(without=[TESTS, LOGS, SOLUTION])
        except DiskTooFull as error:
            return Verdict(reward=0.0, reason=str(error))  # only the agent can have filled it
        finally:
            agent.close()
        image = await self.image(task)
        path = f"{CLEAN_PATH}:{image.env['PATH']}" if "PATH" in image.env else CLEAN_PATH
        clean = Image(env={**image.env, "PYTHONNOUSERSITE": "1", "PATH": path}, workdir=image.workdir)
        verifier = await open_shell(await self.sandbox.session(), clean, self.limits)
        try:
            await verifier.load(image.archive, origin="startup")
            await verifier.load(files, origin="agent")
            await verifier.load(pack(test_files(task)), clear=[TESTS, LOGS, SOLUTION])
            script = (task.folder / "tests" / "test.sh").read_text(encoding="utf-8")
            result = await verifier.run(
                f"{SKIP_INSTALLS if has_installs(script) else ''}{TESTS}/test.sh",
                timeout_s=task.settings.verifier.timeout_sec,
                env=task.settings.verifier.env,
            )
            return await read_verdict(task, verifier, result, reward_key)
        finally:
            verifier.close()


def test_files(task: HarborTask) -> list[FileEntry]:
    """Return the folders that are the verifier's."""
    folders = [FileEntry(path=f"{LOGS}/{name}", mode=0o755) for name in ("verifier", "agent", "artifacts")]
    tests = read_tree(task.folder / "tests", TESTS)
    script = f"{TESTS}/test.sh"
    runnable = FileEntry(path=script, data=(task.folder / "tests" / "test.sh").read_bytes(), mode=0o755)
    return [*folders, *(entry for entry in tests if entry.path != script), runnable]


class Readable(Protocol):
    """A place with the files of the verifier."""

    async def read_file(self, path: str, max_bytes: int) -> bytes | None:
        """Return the start of a file; None unless it is a regular file."""


async def read_verdict(task: HarborTask, verifier: Readable, result: ShellResult, reward_key: str) -> Verdict:
    """Return the reward that the tests wrote. Raises RewardFailure if it is not a number."""
    if result.timed_out or result.lost:
        raise RewardFailure(f"{task.name}: tests/test.sh gave no reward: {_describe(result)}")
    data = await verifier.read_file(REWARD_JSON, MAX_REWARD_BYTES) if task.has_json_reward else None
    if data is not None:
        return read_json_reward(task.name, data, reward_key)
    data = await verifier.read_file(REWARD_TEXT, MAX_REWARD_BYTES)
    if data is None:
        raise RewardFailure(f"{task.name}: tests/test.sh wrote no {REWARD_TEXT}: {_describe(result)}")
    return Verdict(reward=read_number(task.name, REWARD_TEXT, data.decode("utf-8", "replace").strip()))


def read_json_reward(name: str, data: bytes, key: str) -> Verdict:
    """Return the verdict of reward.json: one number, or several by name. Raises RewardFailure."""
    try:
        rewards = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RewardFailure(f"{name}: {REWARD_JSON} is not valid JSON") from error
    if not isinstance(rewards, dict):
        return Verdict(reward=read_number(name, REWARD_JSON, rewards))
    parts = {part: read_number(name, REWARD_JSON, value) for part, value in rewards.items()}
    if key not in parts and len(parts) != 1:
        keys = ", ".join(map(repr, parts)) or "none"
        raise RewardFailure(f"{name}: {REWARD_JSON} has no {key!r}, but {keys}: set env.params.reward_key")
    return Verdict(reward=parts.get(key, next(iter(parts.values()))), parts=parts)


def read_number(name: str, where: str, value: object) -> float:
    """Return a finite number of bounded size. Raises RewardFailure for anything else, such as nan."""
    try:
        number = float("nan") if isinstance(value, bool) or not isinstance(value, str | int | float) else float(value)
    except (ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= MAX_REWARD:
        raise RewardFailure(f"{name}: {where} has {shorten(repr(value), 40)}, which is not a finite number")
    return number


def _describe(result: ShellResult) -> str:
    if result.lost:
        return result.lost
    if result.timed_out:
        return "it reached its time limit"
    lines = [line for line in result.output.strip().splitlines() if line.strip()]
    return f"exit code {result.exit_code}" + (f", {first_line(lines[-1])}" if lines else "")
