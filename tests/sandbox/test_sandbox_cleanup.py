"""No leftovers: after sessions, after crashes, after the host is killed."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sync_sandbox_for_tests import LIMITS, TIERS, SyncSandbox, start_sandbox

from turnwise.sandbox.host import Sandbox
from turnwise.sandbox.processes import descendants
from turnwise.sandbox.scratch_folders import BASE_NAME, create_base, remove_abandoned_bases, remove_base
from turnwise.sandbox.types import RunResult, SandboxFailure
from turnwise.sandbox.zygote_process import ZygoteProcess, ZygoteStartError
from work_for_tests import HANG_S, wait_until

SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))
SESSIONS = {"namespaces": 60, "landlock": 40} if SOAK == 1 else {"namespaces": 1000 * SOAK, "landlock": 200 * SOAK}
"""Sessions in total; eight live at a time."""


@pytest.fixture(autouse=True)
def private_tempdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Separate the temporary folders from those of other tests."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def resources() -> dict[str, object]:
    """Return what this process holds: descriptors, mounts, folders."""
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "folders": sorted(path.name for path in Path(tempfile.gettempdir()).glob(f"*{BASE_NAME}*")),
    }


@pytest.mark.parametrize("tier", TIERS)
def test_sessions_leak_nothing(tier: str) -> None:
    before, children = resources(), set(descendants(os.getpid()))
    with start_sandbox(tier) as box:  # type: ignore[arg-type]
        run_sessions(box, 20)
        wait_for_exits(box)
        middle, alive = resources(), len(descendants(os.getpid()))
        zygote = zygote_of(box)
        before_inside = count_in_zygote(zygote)
        run_sessions(box, SESSIONS[tier])
        wait_for_exits(box)
        assert wait_until(lambda: len(descendants(os.getpid())) <= alive)
        assert resources() == middle
        assert wait_until(lambda: count_in_zygote(zygote) == before_inside), (count_in_zygote(zygote), before_inside)
        if tier == "landlock":
            assert wait_until(lambda: not list(Path(scratch_of(box)).iterdir()))
    assert wait_until(lambda: set(descendants(os.getpid())) <= children)
    assert resources() == before


def wait_for_exits(box: SyncSandbox) -> None:
    """Wait until the zygote has reported every exit and all removers of scratch folders have exited."""

    async def poll() -> None:
        while box.sandbox._zygote._running or holds_pidfd(zygote_of(box)):
            await asyncio.sleep(0.02)

    box.wait(asyncio.wait_for(poll(), HANG_S))


def holds_pidfd(zygote: int) -> bool:
    try:
        return any("pidfd" in str(path.readlink()) for path in Path(f"/proc/{zygote}/fd").iterdir())
    except FileNotFoundError:  # closed meanwhile
        return True


def count_in_zygote(zygote: int) -> tuple[int, int]:
    """Count descriptors and mounts."""
    mounts = Path(f"/proc/{zygote}/mountinfo").read_text().splitlines()
    return len(list(Path(f"/proc/{zygote}/fd").iterdir())), len(mounts)


def scratch_of(box: SyncSandbox) -> str:
    scratch = box.sandbox._zygote._scratch
    assert scratch is not None
    return scratch[0]


def run_sessions(box: SyncSandbox, count: int) -> None:
    """Run sessions that leave files, threads and processes behind, some of which crash."""
    codes = (
        "open('a', 'w').write('x')",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "import os\ntry: os.fork() or __import__('time').sleep(60)\nexcept OSError: pass",
        "import os\nos._exit(1)",
        "x = 1",
        "x = 1",
    )

    async def one(number: int, gate: asyncio.Semaphore) -> None:
        async with gate, box.sandbox.session() as session:
            await session.run(codes[number % len(codes)])

    async def everyone() -> None:
        gate = asyncio.Semaphore(8)
        await asyncio.gather(*(one(number, gate) for number in range(count)))

    box.wait(everyone())


PARENT = """
import asyncio, os, sys
from turnwise.sandbox.host import Sandbox
from turnwise.sandbox.types import SandboxLimits
from turnwise.sandbox.processes import descendants
async def main():
    box = await Sandbox.start(SandboxLimits(timeout_s=60), sys.argv[1], packages=())
    try:
        async with box.session() as one, box.session() as two:
            await one.run("open('left', 'w').write('x')")
            await one.run("x = 1")
            code = "import os, time\\ntry: os.fork()\\nexcept OSError: pass\\ntime.sleep(60)"
            waiting = asyncio.ensure_future(two.run(code))
            while len(descendants(os.getpid())) < int(sys.argv[2]):
                await asyncio.sleep(0.02)
            print("ready", flush=True)
            await waiting
    finally:
        await box.close()
try:
    asyncio.run(main())
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("tier", TIERS)
def test_killed_host_leaves_nothing(tier: str, number: signal.Signals) -> None:
    folders = resources()["folders"]
    command = [sys.executable, "-c", PARENT, tier, "5" if tier == "namespaces" else "3"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None and parent.stderr is not None
        if parent.stdout.readline() != b"ready\n":
            error = parent.stderr.read().decode()
            assert "SandboxUnavailable" in error, error
            pytest.skip(error.strip().splitlines()[-1])
        family = descendants(parent.pid)
        parent.send_signal(number)
        parent.wait()
    assert wait_until(lambda: not any(is_alive(pid) for pid in family)), family
    if number != signal.SIGINT:  # the next start removes what a killed host could not
        remove_abandoned_bases()
    assert wait_until(lambda: resources()["folders"] == folders)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def zygote_pids(box: SyncSandbox) -> list[int]:
    return [box.sandbox._zygote.process.pid, *descendants(box.sandbox._zygote.process.pid)]


def zygote_of(box: SyncSandbox) -> int:
    """Return the process that forks sessions: in a pid namespace, its first process."""
    return zygote_pids(box)[1 if box.sandbox.tier == "namespaces" else 0]


@pytest.mark.parametrize("tier", TIERS)
def test_dead_zygote_raises_and_is_replaced(tier: str) -> None:
    with start_sandbox(tier) as box:  # type: ignore[arg-type]

        async def dies_during_a_call() -> RunResult:
            async with box.sandbox.session() as session:
                running = asyncio.ensure_future(session.run("import time\ntime.sleep(60)"))
                await asyncio.sleep(0.2)
                os.kill(zygote_pids(box)[0], signal.SIGKILL)
                with pytest.raises(SandboxFailure):
                    await asyncio.wait_for(running, HANG_S)
                return await session.run("6 * 7")

        old = zygote_pids(box)
        result = box.wait(dies_during_a_call())
        assert (result.value, result.output.startswith("[the interpreter was restarted")) == ("42", True)
        assert wait_until(lambda: not any(is_alive(pid) for pid in old))


def test_irreplaceable_zygote_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: ZygoteProcess) -> None:
        raise ZygoteStartError("no more processes")

    with start_sandbox("namespaces") as box:

        async def die() -> None:
            async with box.sandbox.session() as session:
                await session.run("1")
                os.kill(zygote_pids(box)[0], signal.SIGKILL)
                monkeypatch.setattr(ZygoteProcess, "start", fail)
                for _ in range(2):
                    with pytest.raises(SandboxFailure, match=r"zygote|restarted"):
                        await session.run("1")
                        await asyncio.sleep(0.2)
                        await session.run("1")

        box.wait(die())


FORK_AFTER_ANSWER = """
import os, socket, time
def late(self, data):
    os.write(3, data)
    end = time.perf_counter() + DELAY
    while time.perf_counter() < end: pass
    if os.fork() == 0:
        while True: pass
socket.socket.sendall = late
"""


def test_process_forked_after_the_answer_is_killed() -> None:
    """With many delays: before, during and after the host's check.

    The event loop must run during the wait, since the host's second check is a timer of it.
    """

    async def fork_late(box: Sandbox) -> None:
        sessions = [box.session() for _ in range(12 if SOAK == 1 else 24)]
        for number, session in enumerate(sessions):
            await session.run(FORK_AFTER_ANSWER.replace("DELAY", str(number % 12 * 0.00005)))
        while any(session.pid and descendants(session.pid) for session in sessions):
            await asyncio.sleep(0.02)
        for session in sessions:
            session.close()

    with start_sandbox("namespaces") as box:
        box.wait(asyncio.wait_for(fork_late(box.sandbox), HANG_S))


@pytest.mark.parametrize("tier", TIERS)
def test_more_sessions_than_descriptors_of_one_session(tier: str) -> None:
    async def many(box: Sandbox) -> list[str | None]:
        sessions = [box.session() for _ in range(50)]
        results = [(await session.run("6 * 7")).value for session in sessions]
        for session in sessions:
            session.close()
        return results

    with start_sandbox(tier, replace(LIMITS, open_files=40)) as box:  # type: ignore[arg-type]
        assert set(box.wait(many(box.sandbox))) == {"42"}


@pytest.fixture
def descriptors() -> Iterator[Callable[[int], None]]:
    """Set the number of descriptors that this process may have, for the test."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda limit: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_start_raises_the_descriptor_limit(descriptors: Callable[[int], None]) -> None:
    descriptors(256)
    with start_sandbox("namespaces"):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert soft == (65536 if hard == resource.RLIM_INFINITY else min(65536, hard))


def limit_with_free(count: int, pid: int | str = "self") -> int:
    """Return the limit that leaves `count` descriptors of a process free."""
    taken = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir() if path.exists() or pid != "self"}
    free = (number for number in range(65536) if number not in taken)
    return [next(free) for _ in range(count)][-1] + 1


@pytest.mark.parametrize("tier", TIERS)
def test_host_without_descriptors_raises(tier: str, descriptors: Callable[[int], None]) -> None:
    async def starve(box: Sandbox, free: int) -> None:
        session = box.session()
        descriptors(limit_with_free(free))
        with pytest.raises(SandboxFailure, match=r"descriptors|Too many|died during"):
            await session.run("6 * 7")
        descriptors(1024)
        session.close()

    with start_sandbox(tier) as box:  # type: ignore[arg-type]
        wait_for_exits(box)
        alive = len(descendants(os.getpid()))
        for free in (1, 3, 4, 5):
            box.wait(asyncio.wait_for(starve(box.sandbox, free), HANG_S))
        assert box.last("6 * 7").value == "42"
        assert wait_until(lambda: len(descendants(os.getpid())) <= alive)


@pytest.mark.parametrize("tier", TIERS)
def test_zygote_recovers_from_a_failed_start(tier: str) -> None:
    with start_sandbox(tier) as box:  # type: ignore[arg-type]
        wait_for_exits(box)
        pids = zygote_pids(box)
        zygote = zygote_of(box)
        before = resource.prlimit(zygote, resource.RLIMIT_NOFILE)
        for free in (1, 2):  # not enough for the session's channels; not enough for its pidfd
            resource.prlimit(zygote, resource.RLIMIT_NOFILE, (limit_with_free(free, zygote), before[1]))
            with pytest.raises(SandboxFailure, match=r"descriptors|Too many|died during"):
                box.last("6 * 7")
        resource.prlimit(zygote, resource.RLIMIT_NOFILE, before)
        assert box.last("6 * 7").value == "42"
        assert wait_until(lambda: zygote_pids(box) == pids)


def test_close_ends_running_calls_and_rejects_new_ones() -> None:
    async def close() -> None:
        box = await Sandbox.start(LIMITS, packages=())
        session = box.session()
        running = asyncio.ensure_future(session.run("import time\ntime.sleep(60)"))
        await asyncio.sleep(0.3)
        await box.close()
        with pytest.raises(SandboxFailure):
            await asyncio.wait_for(running, HANG_S)
        with pytest.raises(SandboxFailure, match="closed"):
            await session.run("1")
        await box.close()

    before = resources()
    asyncio.run(close())
    assert resources() == before


def test_remove_abandoned_bases_keeps_those_in_use() -> None:
    base, lock = create_base()
    Path(base, "0").mkdir()
    remove_abandoned_bases()
    assert Path(base, "0").exists()
    os.close(lock)
    remove_abandoned_bases()
    assert not Path(base).exists()
    other, lock = create_base()
    remove_base(other, lock)
    assert not Path(other).exists()
