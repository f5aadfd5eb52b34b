"""Harbor tasks in containers of podman or docker, for those that need more than the sandbox has.

An episode has two containers: the agent's, without a network, and after its end the verifier's, which starts from the
task's image and gets those files of the agent from which no program loads code.
"""

import asyncio
import json
import tarfile
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import IO

from turnwise.concurrency.per_loop import PerLoop
from turnwise.core.errors import UserError
from turnwise.envs.adapters.harbor.episode import LOGS, SOLUTION, TESTS, Verdict, read_verdict, test_files
from turnwise.envs.adapters.harbor.task_folder import HarborTask
from turnwise.sandbox.files import pack_tar
from turnwise.sandbox.shell import ShellResult, join_ends
from turnwise.sandbox.shell_process import STARTUP_PATHS, SYSTEM_FOLDERS
from turnwise.sandbox.types import SandboxFailure
from turnwise.text.truncation import first_line

COMMAND_S = 300.0
"""Time for a command of podman itself, such as a copy."""
GRACE_S = 10.0
PROCESSES = 1024
CHUNK = 1 << 16
NO_NETWORK = "--network=none"
ERROR_CODE = 125
"""Exit status of podman and docker for errors of their own."""
INIT = "echo ready; exec cat > /dev/null"
"""First process of a container: it ends, and the container with it, when this process closes its input."""
WRAPPER = """
cd "$2" 2> /dev/null || cd /
mark=$3
trap 'printf "%s%s%s" "$mark" "$(pwd -P)" "$mark"; kill -9 -1 2> /dev/null' EXIT
eval "$1"
"""
"""Runs a command in a folder, then prints the folder in which it ended between marks, and ends all other processes."""
REMOVE = 'while IFS= read -r -d "" path; do rm -rf -- "$path"; done'
REMOVE_UNLESS_FOLDERS = (
    'while IFS= read -r -d "" path; do [ -d "$path" ] && [ ! -L "$path" ] || rm -rf -- "$path"; done'
)
OWN_FOLDERS = tuple(path.strip("/") for path in (TESTS, LOGS, SOLUTION))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerImage:
    """An image of a task."""

    name: str
    path: str
    """Its variable PATH."""
    workdir: str
    size: int
    """Bytes of its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Files that an agent wrote or removed, without those that belong to the image's programs or to the verifier."""

    archive: IO[bytes]
    """The container's files."""
    removed: Sequence[str] = ()
    members: Sequence[tarfile.TarInfo] = field(default_factory=tuple)

    def write(self, target: IO[bytes]) -> None:
        """Write an archive of the changed files."""
        with tarfile.open(fileobj=self.archive) as source, tarfile.open(fileobj=target, mode="w") as tar:
            for member in self.members:
                data = source.extractfile(member) if member.isreg() or member.islnk() else None
                if member.islnk() and data is not None:  # the other name of the file may be left out
                    other = source.getmember(member.linkname)
                    member = other.replace(name=member.name, deep=False)
                tar.addfile(member, data)


class TooManyFiles(Exception):
    """The files of an agent exceed the limit. The message is one line."""


class Containers:
    """Starts containers for the tasks of a run, and keeps their images."""

    def __init__(self, *, program: str, memory_mb: int, disk_mb: int) -> None:
        self.program, self._memory_mb, self._disk_mb = program, memory_mb, disk_mb
        self._images: dict[str, ContainerImage] = {}
        self._building = PerLoop(asyncio.Lock)

    async def call(self, *arguments: str, data: IO[bytes] | bytes | None = None, timeout_s: float = COMMAND_S) -> str:
        """Run the program; return its output. Raises SandboxFailure."""
        child = await asyncio.create_subprocess_exec(
            self.program,
            *arguments,
            stdin=asyncio.subprocess.PIPE if isinstance(data, bytes) else (data or asyncio.subprocess.DEVNULL),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(timeout_s):
                out, errors = await child.communicate(data if isinstance(data, bytes) else None)
        except TimeoutError as error:
            raise SandboxFailure(f"{self.program} {arguments[0]} took longer than {timeout_s:g} s") from error
        finally:
            await _end(child)
        if child.returncode:
            raise SandboxFailure(f"{self.program} {arguments[0]} failed: {_last_line(errors or out)}")
        return out.decode("utf-8", "replace")

    async def image(self, task: HarborTask) -> ContainerImage:
        """Return the image of a task, building it at first use. Raises UserError if that fails."""
        async with self._building.get():
            if task.key not in self._images:
                try:
                    self._images[task.key] = await self._build(task)
                except SandboxFailure as error:
                    raise UserError(f"{task.name}: {error}") from error
            return self._images[task.key]

    async def _build(self, task: HarborTask) -> ContainerImage:
        environment = task.settings.environment
        name = environment.docker_image or f"turnwise-harbor:{task.key[:24]}"
        if environment.docker_image is None:
            folder = str(task.folder / "environment")
            await self.call("build", "--quiet", "--tag", name, folder, timeout_s=environment.build_timeout_sec)
        elif not await self._has(name):
            await self.call("pull", "--quiet", name, timeout_s=environment.build_timeout_sec)
        (facts,) = json.loads(await self.call("image", "inspect", name))
        variables = dict(entry.partition("=")[::2] for entry in facts["Config"].get("Env") or ())
        workdir = environment.workdir or facts["Config"].get("WorkingDir") or "/"
        return ContainerImage(name=name, path=variables.get("PATH", ""), workdir=workdir, size=facts["Size"])

    async def _has(self, name: str) -> bool:
        try:
            await self.call("image", "inspect", name)
        except SandboxFailure:
            return False
        return True

    async def build_all(self, tasks: Iterable[HarborTask]) -> None:
        for task in tasks:
            await self.image(task)

    async def open(self, task: HarborTask) -> "ContainerShell":
        """Start the agent's container."""
        return await self._start(task, NO_NETWORK)

    async def _start(self, task: HarborTask, *options: str) -> "ContainerShell":
        shell = ContainerShell(self, await self.image(task), [*self._options(task), *options], self._disk_mb)
        await shell.start()
        return shell

    def _options(self, task: HarborTask) -> list[str]:
        memory = f"{self._memory_mb}m"
        limits = [f"--memory={memory}", f"--memory-swap={memory}", f"--pids-limit={PROCESSES}"]
        limits += ["--ulimit=nofile=1024:4096", f"--ulimit=nproc={PROCESSES}:{PROCESSES}"]
        variables = [f"--env={name}={value}" for name, value in task.settings.environment.env.items()]
        return [*limits, "--security-opt=no-new-privileges", "--workdir=/", *variables]

    async def verify(self, task: HarborTask, agent: "ContainerShell", reward_key: str) -> Verdict:
        """Run the tests on the agent's files, in another container. Raises RewardFailure if they give no number."""
        with tempfile.TemporaryFile() as files, tempfile.TemporaryFile() as changed:
            try:
                changes = await agent.changes(files)
            except TooManyFiles as error:
                return Verdict(reward=0.0, reason=str(error))
            finally:
                await agent.close()
            changes.write(changed)
            verifier = await self._start(task, "--user=0", *([] if task.tests_need_network else [NO_NETWORK]))
            try:
                await verifier.load(changes, changed)
                await verifier.write(pack_tar(test_files(task)))
                result = await verifier.run(
                    f"{TESTS}/test.sh",
                    timeout_s=task.settings.verifier.timeout_sec,
                    env={"PYTHONNOUSERSITE": "1", **task.settings.verifier.env},
                )
                return await read_verdict(task, verifier, result, reward_key)
            finally:
                await verifier.close()


class ContainerShell:
    """One container. Each command is a process of its own, and its processes end with it; the folder and files stay."""

    def __init__(self, containers: Containers, image: ContainerImage, options: Sequence[str], disk_mb: int) -> None:
        self._containers, self._image, self._options = containers, image, options
        self._max_bytes = image.size + image.size // 8 + (disk_mb << 20)
        self._name = ""
        self._child: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self.cwd = image.workdir

    async def start(self) -> None:
        """Start the container in the state of the image."""
        self._name, self.cwd = f"turnwise-{uuid.uuid4().hex}", self._image.workdir
        command = ["run", "--rm", "--interactive", f"--name={self._name}", "--entrypoint=/bin/sh", *self._options]
        self._child = await asyncio.create_subprocess_exec(
            self._containers.program,
            *command,
            self._image.name,
            "-c",
            INIT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the run
        )
        assert self._child.stdout is not None
        printed = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(COMMAND_S):
                while line := await self._child.stdout.readline():
                    if line == b"ready\n":
                        return
                    printed += line[:CHUNK]
        await self.close()
        raise SandboxFailure(f"{self._containers.program} cannot start a container: {_last_line(printed)}")

    async def run(
        self, command: str, *, timeout_s: float, env: Mapping[str, str] | None = None, max_chars: int = 16_000
    ) -> ShellResult:
        """Run a command in the folder where the last one ended. Raises only SandboxFailure."""
        async with self._lock:
            mark = uuid.uuid4().hex
            variables = [f"--env={name}={value}" for name, value in (env or {}).items()]
            child = await asyncio.create_subprocess_exec(
                self._containers.program,
                *("exec", *variables, self._name, "bash", "-c", WRAPPER, "bash", command, self.cwd, mark),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            output, timed_out = _Ends(2 * max_chars + CHUNK), False
            try:
                async with asyncio.timeout(timeout_s):
                    await output.read(child)
            except TimeoutError:
                timed_out = True
            finally:
                await _end(child)
            if timed_out:
                await self._end_processes()
            return await self._result(output, child.returncode or 0, mark.encode(), timed_out, max_chars)

    async def _result(
        self, output: "_Ends", exit_code: int, mark: bytes, timed_out: bool, max_chars: int
    ) -> ShellResult:
        if self._child is None or self._child.returncode is not None:
            await self.start()
            return ShellResult(output="", exit_code=137, lost="its container has ended")
        folder = output.cut(mark)
        if folder is not None and folder.startswith("/") and len(folder) < 4096:
            self.cwd = folder
        elif folder is None and exit_code == ERROR_CODE and not timed_out:
            raise SandboxFailure(f"{self._containers.program} exec failed: {_last_line(bytes(output.tail))}")
        text = join_ends((bytes(output.head), bytes(output.tail)), output.total, max_chars)
        return ShellResult(output=text, exit_code=exit_code, timed_out=timed_out)

    async def _end_processes(self) -> None:
        """End all processes but the first, which no signal from inside reaches."""
        with suppress(SandboxFailure):
            await self._containers.call("exec", "--user=0", self._name, "bash", "-c", "kill -9 -1", timeout_s=GRACE_S)

    async def changes(self, archive: IO[bytes]) -> Changes:
        """Return what the agent changed; `archive` gets all files. Raises TooManyFiles."""
        listed = await self._containers.call("diff", self._name)
        changed = {line[2:].strip("/"): line[0] for line in listed.splitlines() if line[1:2] == " "}
        paths = {path: kind for path, kind in changed.items() if not self._is_kept(path)}
        await self._export(archive)
        archive.seek(0)
        with tarfile.open(fileobj=archive) as tar:
            members = [
                member
                for member in tar
                if paths.get(member.name.strip("/"), "D") != "D"
                and (member.isreg() or member.islnk() or member.issym() or member.isdir())
            ]
        archive.seek(0)
        removed = [path for path, kind in paths.items() if kind == "D"]
        return Changes(archive=archive, removed=removed, members=members)

    def _is_kept(self, path: str) -> bool:
        """Return whether a path stays as in the image: programs, what they load at their start, and the verifier's."""
        below = lambda folders: any(path == folder or path.startswith(f"{folder}/") for folder in folders)  # noqa: E731
        programs = [folder.strip("/") for folder in self._image.path.split(":") if folder.strip("/")]
        system = below(SYSTEM_FOLDERS) and not below(("usr/local",))
        return not path or ".." in path.split("/") or system or below((*STARTUP_PATHS, *OWN_FOLDERS, *programs))

    async def _export(self, archive: IO[bytes]) -> None:
        child = await asyncio.create_subprocess_exec(
            *(self._containers.program, "export", self._name), stdout=asyncio.subprocess.PIPE
        )
        assert child.stdout is not None
        try:
            async with asyncio.timeout(COMMAND_S):
                while data := await child.stdout.read(CHUNK):
                    archive.write(data)
                    if archive.tell() > self._max_bytes:
                        raise TooManyFiles(f"its files have more than {self._max_bytes >> 20} MiB")
                if await child.wait():
                    raise SandboxFailure(f"{self._containers.program} export failed")
        finally:
            await _end(child)

    async def load(self, changes: Changes, archive: IO[bytes]) -> None:
        """Make an agent's changes in this container. Nothing of the agent has run in it yet."""
        folders = [member.name for member in changes.members if member.isdir()]
        others = [member.name for member in changes.members if not member.isdir()]
        await self._remove(REMOVE, [*changes.removed, *others])
        await self._remove(REMOVE_UNLESS_FOLDERS, folders)
        await self._copy(archive)

    async def write(self, archive: bytes) -> None:
        """Replace the verifier's folders by those in an archive."""
        await self._remove(REMOVE, OWN_FOLDERS)
        with tempfile.TemporaryFile() as file:
            file.write(archive)
            await self._copy(file)

    async def _remove(self, program: str, paths: Sequence[str]) -> None:
        names = b"".join(f"/{path.strip('/')}".encode("utf-8", "surrogateescape") + b"\0" for path in paths)
        await self._containers.call("exec", "--interactive", self._name, "bash", "-c", program, data=names)

    async def _copy(self, archive: IO[bytes]) -> None:
        archive.seek(0)
        await self._containers.call("cp", "-", f"{self._name}:/", data=archive)

    async def read_file(self, path: str, max_bytes: int) -> bytes | None:
        """Return the start of a file; None unless it is a regular file."""
        name = PurePosixPath(path)
        script = '[ -f "$1" ] && [ ! -L "$1" ] && exec head -c "$2" -- "$1"; exit 3'
        child = await asyncio.create_subprocess_exec(
            *(self._containers.program, "exec", self._name, "bash", "-c", script, "bash", str(name), str(max_bytes)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(COMMAND_S):
                data, _ = await child.communicate()
        finally:
            await _end(child)
        return None if child.returncode else data[:max_bytes]

    async def close(self) -> None:
        """End the container, which removes it. Does nothing the second time."""
        child, self._child = self._child, None
        if child is None or child.stdin is None:
            return
        child.stdin.close()
        try:
            async with asyncio.timeout(GRACE_S):
                await child.communicate()
        except TimeoutError:
            with suppress(SandboxFailure):
                await self._containers.call("rm", "--force", self._name, timeout_s=GRACE_S)
        finally:
            await _end(child)


class _Ends:
    """Head and tail of an output of any length."""

    def __init__(self, keep: int) -> None:
        self.keep, self.total = keep, 0
        self.head, self.tail = bytearray(), bytearray()

    async def read(self, child: asyncio.subprocess.Process) -> None:
        assert child.stdout is not None
        while data := await child.stdout.read(CHUNK):
            self.total += len(data)
            self.head += data[: max(0, self.keep - len(self.head))]
            self.tail = (self.tail + data)[-self.keep :]
        await child.wait()

    def cut(self, mark: bytes) -> str | None:
        """Remove the last pair of marks and all after its start; return what is between them."""
        position = self.tail.rfind(mark, 0, max(0, self.tail.rfind(mark)))
        if position < 0:
            return None
        between = bytes(self.tail[position:]).split(mark)[1]
        self.total -= len(self.tail) - position
        del self.tail[position:], self.head[max(0, self.total) :]
        return between.decode("utf-8", "replace")


async def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()


def _last_line(output: bytes) -> str:
    lines = [line for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    return first_line(lines[-1]) if lines else "no output"
