"""Sandboxed Python sessions, as the rest of turnwise uses them.

box = await Sandbox.start(SandboxLimits(timeout_s=5))
async with box.session(seed=3) as session:
    result = await session.run("x = 6 * 7; x")      # RunResult(value="42", status="ok", ...)
await box.close()
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, Self

from turnwise.sandbox.probe import FIXES, TIERS, self_test, unsupported_reason
from turnwise.sandbox.python_install import DEFAULT_PACKAGES, AgentAccess, PythonInstall, find_python_install
from turnwise.sandbox.session_process import SessionProcess
from turnwise.sandbox.types import RunResult, SandboxFailure, SandboxLimits, SandboxUnavailable, Tier
from turnwise.sandbox.watchdog import Watchdog
from turnwise.sandbox.zygote_process import ZygoteProcess, ZygoteStartError
from turnwise.text.validation import find_invalid_character

RESTART_NOTE = "[the interpreter was restarted: variables from earlier calls are lost]\n"


class Sandbox:
    """A zygote and its sessions. Created by `Sandbox.start`; without isolation only by `start_unsafe_subprocess`."""

    def __init__(self, zygote: ZygoteProcess, limits: SandboxLimits) -> None:
        self.limits = limits
        self._zygote = zygote
        self._watchdog = Watchdog(limits)
        self._restarting = asyncio.Lock()
        self._processes: set[SessionProcess] = set()
        self._closed = False

    @classmethod
    async def start(
        cls,
        limits: SandboxLimits | None = None,
        tier: Literal["auto", "namespaces", "landlock"] = "auto",
        *,
        packages: tuple[str, ...] = DEFAULT_PACKAGES,
        own_root: bool = False,
        agent: AgentAccess | None = None,
    ) -> "Sandbox":
        """Start the best tier that passes its self-test.

        `packages`: distributions that sessions can import; they are loaded once, for all sessions.
        `own_root`: sessions have this machine's programs and a writable root, as shells need it. Namespaces only.
        `agent`: their root also has what the program of an agent needs.
        """
        if (problem := unsupported_reason()) is not None:
            raise SandboxUnavailable(problem)
        problems = []
        tiers = TIERS if tier == "auto" else (tier,)
        for candidate in ("namespaces",) if own_root else tiers:  # a shell needs processes and mounts
            try:
                python = find_python_install(packages, own_root=own_root, agent=agent)
                return await cls._start_tested(candidate, limits or SandboxLimits(), python)
            except ZygoteStartError as error:
                problems.append(f"{candidate}: {error}; to fix it, {FIXES[candidate]}")
        raise SandboxUnavailable("No sandbox works on this machine. " + ". ".join(problems) + ".")

    @classmethod
    async def open(cls, tier: Tier, limits: SandboxLimits, python: PythonInstall) -> "Sandbox":
        """Start one tier without a self-test. Raises ZygoteStartError."""
        zygote = ZygoteProcess(tier, limits, python)
        await zygote.start()
        return cls(zygote, limits)

    @classmethod
    async def _start_tested(cls, tier: Tier, limits: SandboxLimits, python: PythonInstall) -> "Sandbox":
        box = await cls.open(tier, limits, python)
        try:
            async with box.session() as session:
                problem = await self_test(session.run)
        except SandboxFailure as error:
            problem = str(error)
        except BaseException:
            box.kill()
            raise
        if problem is not None:
            await box.close()
            raise ZygoteStartError(problem)
        return box

    @property
    def tier(self) -> Tier:
        return self._zygote.tier

    @property
    def jail(self) -> str:
        """Description of the isolation."""
        return self._zygote.jail

    @property
    def packages(self) -> Mapping[str, str]:
        """Preloaded packages: name -> version."""
        return self._zygote.packages

    def session(self, seed: int = 0) -> "SandboxSession":
        """Create a session. Equal seeds and code give equal random numbers. Its process starts at the first `run`."""
        return SandboxSession(self, seed)

    async def close(self) -> None:
        """Kill every session and the zygote, and wait until they have exited."""
        self._end_sessions()
        try:
            await self._zygote.close()
        finally:
            self._zygote.kill()

    def kill(self) -> None:
        """Close without an event loop."""
        self._end_sessions()
        self._zygote.kill()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def new_process(self, seed: int) -> SessionProcess:
        """Start a session's process, after replacing a zygote that died. Raises SandboxFailure."""
        process = SessionProcess(await self._ensure_zygote(), self._watchdog, self.limits)
        self._processes.add(process)
        try:
            await process.start(seed)
        except BaseException:
            self._processes.discard(process)
            raise
        return process

    def end_process(self, process: SessionProcess) -> None:
        process.close()
        self._processes.discard(process)

    async def _ensure_zygote(self) -> ZygoteProcess:
        async with self._restarting:
            if self._closed:
                raise SandboxFailure("the sandbox is closed")
            if not self._zygote.alive:
                old = self._zygote
                old.kill()
                new = ZygoteProcess(old.tier, old.limits, old.python)
                try:
                    await new.start()
                except ZygoteStartError as error:
                    raise SandboxFailure(f"the sandbox's zygote died and cannot be restarted: {error}") from None
                self._zygote = new
            return self._zygote

    def _end_sessions(self) -> None:
        if not self._closed:
            self._closed = True
            self._watchdog.close()
        for process in list(self._processes):
            self.end_process(process)


class SandboxSession:
    """A session whose variables persist from call to call. Concurrent calls run one after another."""

    def __init__(self, box: Sandbox, seed: int) -> None:
        self._box = box
        self._seed = seed
        self._process: SessionProcess | None = None
        self._calls = asyncio.Lock()
        self._lost = False

    async def run(self, code: str, *, timeout_s: float | None = None) -> RunResult:
        """Run code. Raises only SandboxFailure, if the sandbox itself is broken.

        `timeout_s`: limit of this call; the sandbox's own limit applies as well.
        """
        limit = self._box.limits.code_chars
        time_limit = min(timeout_s or self._box.limits.timeout_s, self._box.limits.timeout_s)
        if len(code) > limit:
            return _rejected(f"the code has {len(code)} characters; the limit is {limit}")
        if (broken := find_invalid_character(code)) is not None:
            return _rejected(f"the code holds {broken}: remove it")
        async with self._calls:
            restarted = await self._ensure_process()
            assert self._process is not None
            try:
                result = await self._process.call(code, time_limit)
            finally:
                if self._process.dead:
                    self.close()
        return replace(result, output=RESTART_NOTE + result.output) if restarted else result

    @property
    def pid(self) -> int | None:
        """Host pid of the session's first process; None before it starts."""
        handle = None if self._process is None else self._process.handle
        return None if handle is None else handle.pid

    def close(self) -> None:
        """End the process. A later `run` starts a new one."""
        if self._process is not None:
            self._box.end_process(self._process)
            self._process = None
            self._lost = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    async def _ensure_process(self) -> bool:
        """Start a process if there is none; return whether variables were lost since the last call."""
        if self._process is not None and self._process.dead:
            self.close()
        if self._process is not None:
            return False
        self._process = await self._box.new_process(self._seed)
        lost, self._lost = self._lost, False
        return lost


def _rejected(reason: str) -> RunResult:
    return RunResult(output="", value=None, error=reason, status="error", seconds=0.0)


async def start_unsafe_subprocess(
    limits: SandboxLimits | None = None, *, packages: tuple[str, ...] = DEFAULT_PACKAGES
) -> Sandbox:
    """Start sessions without isolation, for machines that offer none and users who accept that.

    The code runs with all rights of this user: it can read, change and delete files and use the network. Only time,
    memory and output are limited.
    """
    if (problem := unsupported_reason()) is not None:
        raise SandboxUnavailable(problem)
    try:
        return await Sandbox.open("unsafe_subprocess", limits or SandboxLimits(), find_python_install(packages))
    except ZygoteStartError as error:
        raise SandboxUnavailable(f"A Python process could not be started: {error}") from None


def sandbox_report() -> list[str]:
    """Return lines for `turnwise doctor`: the tier in use, then each tier, started and self-tested."""
    if (problem := unsupported_reason()) is not None:
        return [f"sandbox: none: {problem}"]
    return asyncio.run(_report())


async def _report() -> list[str]:
    lines = []
    working: list[Tier] = []
    for tier in TIERS:
        try:
            async with await Sandbox.start(SandboxLimits(), tier) as box:  # type: ignore[arg-type]
                packages = ", ".join(f"{name} {version}" for name, version in box.packages.items()) or "no packages"
                lines.append(f"  {tier}: works ({box.jail}; {packages})")
                working.append(tier)
        except SandboxUnavailable as error:
            lines.append(f"  {tier}: {error}")
    chosen = f"{working[0]} is used" if working else "none: tools that run code cannot be used"
    return [f"sandbox: {chosen}", *lines]
