"""Which tier is chosen, and what is said where none works. Failures are forced by the kernel itself, with a filter."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from turnwise.core.errors import UserError
from turnwise.sandbox import probe
from turnwise.sandbox.host import Sandbox, sandbox_report
from turnwise.sandbox.types import RunResult, SandboxUnavailable

REFUSED = """
import asyncio, errno, json, sys
from turnwise.sandbox.types import SandboxUnavailable
from turnwise.sandbox.host import Sandbox
from turnwise.sandbox.host import sandbox_report
from turnwise.sandbox.seccomp import ALLOW, SyscallRule, compile_filter, fail_with, install_filter
from turnwise.sandbox.syscalls import set_no_new_privileges

rules = [SyscallRule(name=name, action=fail_with(errno.EPERM)) for name in sys.argv[2:]]
set_no_new_privileges()
install_filter(compile_filter(rules, default=ALLOW))

async def main():
    box = await Sandbox.start(tier=sys.argv[1], packages=())
    async with box.session() as session:
        value = (await session.run("6 * 7")).value
    await box.close()
    return {"tier": box.tier, "value": value}

try:
    found = asyncio.run(main())
except SandboxUnavailable as error:
    found = {"error": str(error)}
found["report"] = sandbox_report() if sys.argv[1] == "auto" else []
print(json.dumps(found))
"""

NAMESPACES = ["unshare"]
LANDLOCK = ["landlock_create_ruleset"]


def with_refused(*calls: str, tier: str = "auto") -> dict[str, object]:
    """What a start gives in a process in which the kernel refuses these calls."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, "-c", REFUSED, tier, *calls]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_without_namespaces_landlock_is_chosen() -> None:
    found = with_refused(*NAMESPACES)
    if "error" in found:
        pytest.skip(str(found["error"]))
    assert (found["tier"], found["value"]) == ("landlock", "42")
    assert found["report"][0] == "sandbox: landlock is used"  # type: ignore[index]


@pytest.mark.parametrize("call", ["pivot_root", "mount_setattr", "capset", "seccomp"])
def test_a_jail_that_cannot_be_finished_is_not_used(call: str) -> None:
    found = with_refused(call, tier="namespaces")
    assert "error" in found, found
    assert "namespaces: " in str(found["error"]) and "Operation not permitted" in str(found["error"])


def test_without_any_tier_it_says_at_once_which_probe_failed_and_the_remedy() -> None:
    found = with_refused(*NAMESPACES, *LANDLOCK)
    error = str(found["error"])
    assert "\n" not in error
    assert "namespaces: unshare user namespace: Operation not permitted; remedy: allow user namespaces" in error
    assert "landlock: ask for Landlock: Operation not permitted; remedy: use Linux 5.13" in error
    report = found["report"]
    assert isinstance(report, list)
    assert report[0] == "sandbox: none: tools that run code cannot be used"
    assert len(report) == 3


def test_a_tier_that_is_asked_for_is_not_replaced() -> None:
    assert "tier" not in with_refused(*NAMESPACES, tier="namespaces")
    assert "tier" not in with_refused(*LANDLOCK, tier="landlock")


def test_the_report_names_the_tier_and_the_packages() -> None:
    lines = sandbox_report()
    assert lines[0].startswith("sandbox: ")
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["namespaces", "landlock"]
    if lines[0] != "sandbox: none: tools that run code cannot be used":
        works = next(line for line in lines[1:] if " works (" in line)
        assert "numpy 2" in works or "no packages" in works


def test_another_system_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.sys, "platform", "darwin")
    monkeypatch.setattr(probe.platform, "system", lambda: "Darwin")
    with pytest.raises(SandboxUnavailable, match="needs Linux, and this is Darwin"):
        asyncio.run(Sandbox.start())
    assert sandbox_report() == ["sandbox: none; the sandbox needs Linux, and this is Darwin"]


def test_another_processor_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.platform, "machine", lambda: "riscv64")
    with pytest.raises(UserError, match="knows x86_64 and aarch64 processors, and this is riscv64"):
        asyncio.run(Sandbox.start())


LEAKS = {
    "a read": "session code could True ['read a file of the host']",
    "a write": "session code changed a file of the host",
    "a removal": "session code removed a file of the host",
    "a crash": "a first call ended as killed: it died",
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_jail_that_leaks_fails_its_self_test(leak: str) -> None:
    async def leaky(code: str) -> RunResult:
        canary = Path(next(line for line in code.splitlines() if line.startswith("canary")).split("'")[1])
        output = "True ['read a file of the host']" if leak == "a read" else "True []"
        if leak == "a write":
            canary.write_text("x")
        if leak == "a removal":
            canary.unlink()
        if leak == "a crash":
            return RunResult(output="", value=None, error="it died", status="killed", seconds=0)
        return RunResult(output=output, value=None, error=None, status="ok", seconds=0)

    assert asyncio.run(probe.self_test(leaky)) == LEAKS[leak]


def test_a_start_without_packages_imports_none() -> None:
    async def start() -> RunResult:
        async with await Sandbox.start(packages=()) as box, box.session() as session:
            assert box.packages == {}
            return await session.run("import sys\n{'numpy', 'sympy'} & set(sys.modules)")

    assert asyncio.run(start()).value == "set()"
