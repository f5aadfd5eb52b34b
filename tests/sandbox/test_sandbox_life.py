"""Nothing is left behind: not by sessions, not by crashes, not by a parent that is killed."""

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
from sandbox_box_for_tests import LIMITS, TIERS, Box, started

from turnwise.sandbox.host import Sandbox
from turnwise.sandbox.processes import descendants
from turnwise.sandbox.scratch_folders import BASE_NAME, create_base, remove_abandoned_bases, remove_base
from turnwise.sandbox.types import RunResult, SandboxFailure
from turnwise.sandbox.zygote_process import ZygoteProcess, ZygoteStartError
from work_for_tests import HANG_S, wait_until

SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))
SESSIONS = {"namespaces": 120, "landlock": 60} if SOAK == 1 else {"namespaces": 1000 * SOAK, "landlock": 200 * SOAK}
"""In all; eight live at a time."""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests run beside these and have folders of their own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def held() -> dict[str, object]:
    """What this process holds of the machine: descriptors, mounts, folders."""
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "folders": sorted(path.name for path in Path(tempfile.gettempdir()).glob(f"*{BASE_NAME}*")),
    }


@pytest.mark.parametrize("tier", TIERS)
def test_many_sessions_leak_nothing(tier: str) -> None:
    before, children = held(), set(descendants(os.getpid()))
    with started(tier) as box:  # type: ignore[arg-type]
        busy(box, 20)
        settle(box)
        middle, alive = held(), len(descendants(os.getpid()))
        zygote = zygote_of(box)
        inside = inside_of(zygote)
        busy(box, SESSIONS[tier])
        settle(box)
        assert wait_until(lambda: len(descendants(os.getpid())) <= alive)
        assert held() == middle
        assert wait_until(lambda: inside_of(zygote) == inside), (inside_of(zygote), inside)
        if tier == "landlock":
            assert wait_until(lambda: not list(Path(scratch_of(box)).iterdir()))
    assert wait_until(lambda: set(descendants(os.getpid())) <= children)
    assert held() == before


def settle(box: Box) -> None:
    """Wait until the zygote has told of every end, and until what removes the files of an ended session has gone."""

    async def ends() -> None:
        while box.box._zygote._running or holds_a_process(zygote_of(box)):
            await asyncio.sleep(0.02)

    box.wait(asyncio.wait_for(ends(), HANG_S))


def holds_a_process(zygote: int) -> bool:
    try:
        return any("pidfd" in str(path.readlink()) for path in Path(f"/proc/{zygote}/fd").iterdir())
    except FileNotFoundError:  # closed while we look
        return True


def inside_of(zygote: int) -> tuple[int, int]:
    """Descriptors and mounts."""
    mounts = Path(f"/proc/{zygote}/mountinfo").read_text().splitlines()
    return len(list(Path(f"/proc/{zygote}/fd").iterdir())), len(mounts)


def scratch_of(box: Box) -> str:
    scratch = box.box._zygote._scratch
    assert scratch is not None
    return scratch[0]


def busy(box: Box, count: int) -> None:
    """Sessions that leave files, threads and (where they can) processes, some of which die."""
    codes = (
        "open('a', 'w').write('x')",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "import os\ntry: os.fork() or __import__('time').sleep(60)\nexcept OSError: pass",
        "import os\nos._exit(1)",
        "x = 1",
        "x = 1",
    )

    async def one(number: int, gate: asyncio.Semaphore) -> None:
        async with gate, box.box.session() as session:
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
def test_a_parent_that_is_ended_leaves_nothing(tier: str, number: signal.Signals) -> None:
    folders = held()["folders"]
    command = [sys.executable, "-c", PARENT, tier, "5" if tier == "namespaces" else "3"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None and parent.stderr is not None
        if parent.stdout.readline() != b"ready\n":
            words = parent.stderr.read().decode()
            assert "SandboxUnavailable" in words, words
            pytest.skip(words.strip().splitlines()[-1])
        family = descendants(parent.pid)
        parent.send_signal(number)
        parent.wait()
    assert wait_until(lambda: not any(is_alive(pid) for pid in family)), family
    if number != signal.SIGINT:  # what a host that was killed could not remove goes when the next one starts
        remove_abandoned_bases()
    assert wait_until(lambda: held()["folders"] == folders)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def zygote_pids(box: Box) -> list[int]:
    return [box.box._zygote.process.pid, *descendants(box.box._zygote.process.pid)]


def zygote_of(box: Box) -> int:
    """The process that starts sessions: the first of its namespace, where it has one."""
    return zygote_pids(box)[1 if box.box.tier == "namespaces" else 0]


@pytest.mark.parametrize("tier", TIERS)
def test_a_dead_zygote_is_our_failure_and_is_replaced(tier: str) -> None:
    with started(tier) as box:  # type: ignore[arg-type]

        async def dies_during_a_call() -> RunResult:
            async with box.box.session() as session:
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


def test_a_zygote_that_cannot_be_replaced_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(self: ZygoteProcess) -> None:
        raise ZygoteStartError("no more processes")

    with started("namespaces") as box:

        async def die() -> None:
            async with box.box.session() as session:
                await session.run("1")
                os.kill(zygote_pids(box)[0], signal.SIGKILL)
                monkeypatch.setattr(ZygoteProcess, "start", refused)
                for _ in range(2):
                    with pytest.raises(SandboxFailure, match=r"zygote|restarted"):
                        await session.run("1")
                        await asyncio.sleep(0.2)
                        await session.run("1")

        box.wait(die())


BORN_LATE = """
import os, socket, time
def late(self, data):
    os.write(3, data)
    end = time.perf_counter() + DELAY
    while time.perf_counter() < end: pass
    if os.fork() == 0:
        while True: pass
socket.socket.sendall = late
"""


def test_a_process_that_is_started_behind_an_answer_does_not_live_on() -> None:
    """At many distances from the answer: before the host looks, while it looks, after it has looked."""

    async def born(box: Sandbox) -> bool:
        sessions = [box.session() for _ in range(24)]
        for number, session in enumerate(sessions):
            await session.run(BORN_LATE.replace("DELAY", str(number % 12 * 0.00005)))
        gone = wait_until(lambda: not any(session.pid and descendants(session.pid) for session in sessions))
        for session in sessions:
            session.close()
        return gone

    with started("namespaces") as box:
        assert box.wait(born(box.box))


@pytest.mark.parametrize("tier", TIERS)
def test_more_sessions_live_at_once_than_one_has_descriptors(tier: str) -> None:
    async def many(box: Sandbox) -> list[str | None]:
        sessions = [box.session() for _ in range(50)]
        results = [(await session.run("6 * 7")).value for session in sessions]
        for session in sessions:
            session.close()
        return results

    with started(tier, replace(LIMITS, open_files=40)) as box:  # type: ignore[arg-type]
        assert set(box.wait(many(box.box))) == {"42"}


@pytest.fixture
def descriptors() -> Iterator[Callable[[int], None]]:
    """Sets how many descriptors this process may have, for a while."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda most: resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_start_makes_room_for_many_sessions(descriptors: Callable[[int], None]) -> None:
    descriptors(256)
    with started("namespaces"):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert soft == (65536 if hard == resource.RLIM_INFINITY else min(65536, hard))


def limit_with_room(room: int, pid: int | str = "self") -> int:
    """The limit under which so many descriptors of a process are still free."""
    used = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir() if path.exists() or pid != "self"}
    free = (number for number in range(65536) if number not in used)
    return [next(free) for _ in range(room)][-1] + 1


@pytest.mark.parametrize("tier", TIERS)
def test_a_host_without_descriptors_hears_so_at_once(tier: str, descriptors: Callable[[int], None]) -> None:
    async def starve(box: Sandbox, room: int) -> None:
        session = box.session()
        descriptors(limit_with_room(room))
        with pytest.raises(SandboxFailure, match=r"descriptors|Too many|died while"):
            await session.run("6 * 7")
        descriptors(1024)
        session.close()

    with started(tier) as box:  # type: ignore[arg-type]
        settle(box)
        alive = len(descendants(os.getpid()))
        for room in (1, 3, 4, 5):
            box.wait(asyncio.wait_for(starve(box.box, room), HANG_S))
        assert box.last("6 * 7").value == "42"
        assert wait_until(lambda: len(descendants(os.getpid())) <= alive)


@pytest.mark.parametrize("tier", TIERS)
def test_a_zygote_that_failed_once_to_start_a_session_starts_the_next(tier: str) -> None:
    with started(tier) as box:  # type: ignore[arg-type]
        settle(box)
        pids = zygote_pids(box)
        zygote = zygote_of(box)
        before = resource.prlimit(zygote, resource.RLIMIT_NOFILE)
        for room in (1, 2):  # none for both ends of a session's channels; none for a handle of its process
            resource.prlimit(zygote, resource.RLIMIT_NOFILE, (limit_with_room(room, zygote), before[1]))
            with pytest.raises(SandboxFailure, match=r"descriptors|Too many|died while"):
                box.last("6 * 7")
        resource.prlimit(zygote, resource.RLIMIT_NOFILE, before)
        assert box.last("6 * 7").value == "42"
        assert wait_until(lambda: zygote_pids(box) == pids)


def test_closing_ends_what_runs_and_refuses_what_comes() -> None:
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

    before = held()
    asyncio.run(close())
    assert held() == before


def test_folders_of_killed_hosts_are_removed_and_those_in_use_are_not() -> None:
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
