"""Shells in the sandbox: commands that share a file system, which can be saved and loaded into another session.

box = await Sandbox.start(shell_limits(...), packages=(), own_root=True)
shell = Shell(box.session(), Image(workdir="/app"))
result = await shell.run("echo hi > file; cat file", timeout_s=10)      # ShellResult(output="hi\n", exit_code=0, ...)
"""

import ast
import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from turnwise.sandbox.files import FileEntry, Image, pack
from turnwise.sandbox.host import SandboxSession
from turnwise.sandbox.session_root import PYTHON_FOLDER
from turnwise.sandbox.types import RunResult, SandboxFailure, SandboxLimits

GRACE_S = 10.0
"""Added to a command's time limit, since the session's first process enforces it and the host only backs it up."""
FILES_TIMEOUT_S = 120.0
CHUNK_BYTES = 1 << 19
MAX_MESSAGE = 1 << 20
"""Characters of one message to the session, or from it."""
SPARE = 0.75
"""Share of the disk and of the files that may be saved, so that what is loaded leaves space for more."""
AGENT_PATH = f"/usr/local/sbin:/usr/local/bin:{PYTHON_FOLDER}:/usr/sbin:/usr/bin:/sbin:/bin"
CLEAN_PATH = f"{PYTHON_FOLDER}:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"
"""The machine's own programs first: those that a session added replace none of them."""
ENVIRONMENT = {"HOME": "/root", "LANG": "C.UTF-8", "TERM": "dumb", "PATH": AGENT_PATH, "PYTHONDONTWRITEBYTECODE": "1"}


Origin = Literal["image", "agent", "startup"]
"""Origin of an archive; see `shell_process.load`."""


class DiskTooFull(Exception):
    """The file system is too large to be saved. The message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellResult:
    """Result of one command. Everything in it comes from untrusted code."""

    output: str
    """stdout and stderr in the order of writing, truncated in the middle."""
    exit_code: int
    timed_out: bool = False
    lost: str = ""
    """Why the session was killed, and with it its files; empty if it was not."""


def shell_limits(*, memory_mb: int, disk_mb: int) -> SandboxLimits:
    """Return limits for sessions with a shell. The calls set their own time limits."""
    return SandboxLimits(
        timeout_s=24 * 3600.0,
        memory_mb=memory_mb,
        output_chars=MAX_MESSAGE,
        scratch_mb=disk_mb,
        file_mb=disk_mb,
        files=20_000,
        open_files=1024,
        processes=128,
        cpu_s=7200,
        code_chars=MAX_MESSAGE,
    )


class Shell:
    """One shell. Each command is a process of its own, and its processes end with it; the folder and files stay.

    A session that is killed at a limit is replaced by one in the state of the image.
    """

    def __init__(self, session: SandboxSession, image: Image, limits: SandboxLimits) -> None:
        self.image = image
        self.limits = limits
        self.cwd = image.workdir
        self._session = session
        self._ready = False
        self._lock = asyncio.Lock()

    async def run(
        self, command: str, *, timeout_s: float, env: Mapping[str, str] | None = None, max_chars: int = 16_000
    ) -> ShellResult:
        """Run a command in the folder where the last one ended. Raises only SandboxFailure."""
        async with self._lock:
            return await self._run(command, timeout_s, env or {}, max_chars)

    async def _run(self, command: str, timeout_s: float, env: Mapping[str, str], max_chars: int) -> ShellResult:
        await self._prepare()
        arguments = {
            "cwd": self.cwd,
            "env": {**ENVIRONMENT, **self.image.env, **env},
            "timeout_s": timeout_s,
            "keep": 2 * max_chars,
        }
        result = await self._call(f"run({command!r}, **{arguments!r})", timeout_s + GRACE_S)
        if result.status != "ok":
            return self._interrupted(result)
        answer = json.loads(_text(result))
        if len(answer["cwd"]) < 4096 and answer["cwd"].startswith("/"):
            self.cwd = answer["cwd"]
        output = join_ends([base64.b64decode(end) for end in answer["ends"]], answer["total"], max_chars)
        return ShellResult(output=output, exit_code=answer["exit_code"], timed_out=answer["timed_out"])

    async def save(self, without: Sequence[str] = ()) -> bytes:
        """Return an archive of all files, without these top folders. Raises DiskTooFull."""
        await self._prepare()
        limits = {
            "max_bytes": int(SPARE * self.limits.scratch_mb * (1 << 20)),
            "max_files": int(SPARE * self.limits.files),
            "without": [path.strip("/") for path in without],
        }
        answer = json.loads(_text(await self._checked(f"save(**{limits!r})")))
        if "problem" in answer:
            raise DiskTooFull(answer["problem"])
        chunks = [
            base64.b64decode(_text(await self._checked(f"read_chunk({start}, {CHUNK_BYTES})")))
            for start in range(0, answer["bytes"], CHUNK_BYTES)
        ]
        return b"".join(chunks)

    async def load(self, archive: bytes, *, origin: Origin = "image", clear: Sequence[str] = ()) -> None:
        """Remove the folders in `clear`, then write the files of an archive."""
        await self._prepare()
        await self._load(archive, origin, clear)

    async def read_file(self, path: str, max_bytes: int) -> bytes | None:
        """Return the start of a file; None unless it is a regular file, reached through no link."""
        await self._prepare()
        text = json.loads(_text(await self._checked(f"read_text({path.strip('/')!r}, {max_bytes})")))
        return None if text is None else base64.b64decode(text)

    def close(self) -> None:
        self._session.close()

    async def _prepare(self) -> None:
        if self._ready and self._session.pid is not None:
            return
        self.cwd = self.image.workdir
        await self._checked(_process_source())
        await self._checked("prepare()")
        folder = pack([FileEntry(path=self.image.workdir, mode=0o755)]) if self.image.workdir != "/" else b""
        for archive in (self.image.archive, folder):
            if archive:
                await self._load(archive, "image", ())
        self._ready = True

    async def _load(self, archive: bytes, origin: Origin, clear: Sequence[str]) -> None:
        for start in range(0, len(archive), CHUNK_BYTES):
            text = base64.b64encode(archive[start : start + CHUNK_BYTES]).decode()
            await self._checked(f"receive_chunk({text!r})")
        removals = "".join(f"remove({path.strip('/')!r})\n" for path in clear)
        await self._checked(f"{removals}load({origin!r})" if archive else removals)

    async def _call(self, code: str, timeout_s: float) -> RunResult:
        result = await self._session.run(code, timeout_s=timeout_s)
        if self._session.pid is None:
            self._ready = False
        return result

    async def _checked(self, code: str) -> RunResult:
        """Run our own code, which must succeed."""
        result = await self._call(code, FILES_TIMEOUT_S)
        if result.status != "ok":
            problem = (result.error or result.status).strip().splitlines()[-1]
            raise SandboxFailure(f"a shell's files could not be read or written: {problem}")
        return result

    def _interrupted(self, result: RunResult) -> ShellResult:
        reason = (result.error or result.status).strip().splitlines()[-1]
        if self._ready:
            return ShellResult(output=f"[interrupted: {reason}]", exit_code=130, timed_out=result.status == "timeout")
        return ShellResult(output="", exit_code=137, lost=reason.removesuffix("; its variables are lost"))


async def open_shell(session: SandboxSession, image: Image, limits: SandboxLimits) -> Shell:
    """Start a shell's session and write the image's files."""
    shell = Shell(session, image, limits)
    try:
        await shell._prepare()
    except (SandboxFailure, asyncio.CancelledError):
        shell.close()
        raise
    return shell


@cache
def _process_source() -> str:
    return (Path(__file__).parent / "shell_process.py").read_text(encoding="utf-8")


def _text(result: RunResult) -> str:
    """Return the text that our code in the session returned, whose repr the answer has."""
    text = ast.literal_eval(result.value or "''")
    if not isinstance(text, str):
        raise SandboxFailure("a shell's session gave an answer of the wrong form")
    return text


def join_ends(ends: Sequence[bytes], total: int, max_chars: int) -> str:
    """Return an output of `total` bytes of which these are the head and the tail, truncated in the middle."""
    head, tail = ends
    if total <= len(head):
        text = head.decode("utf-8", "replace")
    else:
        overlap = max(0, len(head) + len(tail) - total)
        hidden = total - len(head) - len(tail) + overlap
        middle = f"\n[{hidden} bytes left out]\n" if hidden else ""
        text = head.decode("utf-8", "replace") + middle + tail[overlap:].decode("utf-8", "replace")
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
