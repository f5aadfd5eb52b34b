"""Choice of the tier, and messages if none works. A seccomp filter makes the kernel refuse calls."""

import asyncio
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from turnwise.core.errors import UserError
from turnwise.sandbox import host, probe
from turnwise.sandbox.host import Sandbox, sandbox_report
from turnwise.sandbox.types import RunResult, SandboxUnavailable

START_WITH_REFUSED_CALLS = """
import asyncio, errno, json, sys
from functools import partial
from types import SimpleNamespace
from turnwise.sandbox import host
from turnwise.sandbox.types import SandboxUnavailable
from turnwise.sandbox.host import Sandbox
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
host.Sandbox = SimpleNamespace(start=partial(Sandbox.start, packages=()))  # their import takes most of the time
found["report"] = host.sandbox_report() if sys.argv[1] == "auto" else []
print(json.dumps(found))
"""

NAMESPACES = ["unshare"]
LANDLOCK = ["landlock_create_ruleset"]


def start_with_refused(*calls: str, tier: str = "auto") -> dict[str, object]:
    """Start a sandbox in a process in which the kernel refuses these calls."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, "-c", START_WITH_REFUSED_CALLS, tier, *calls]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_start_falls_back_to_landlock() -> None:
    found = start_with_refused(*NAMESPACES)
    if "error" in found:
        pytest.skip(str(found["error"]))
    assert (found["tier"], found["value"]) == ("landlock", "42")
    assert found["report"][0] == "sandbox: landlock is used"  # type: ignore[index]


@pytest.mark.parametrize("call", ["pivot_root", "mount_setattr", "capset", "seccomp"])
def test_start_rejects_an_incomplete_jail(call: str) -> None:
    found = start_with_refused(call, tier="namespaces")
    assert "error" in found, found
    assert "namespaces: " in str(found["error"]) and "Operation not permitted" in str(found["error"])


def test_start_without_any_tier_names_probes_and_fixes() -> None:
    found = start_with_refused(*NAMESPACES, *LANDLOCK)
    error = str(found["error"])
    assert "\n" not in error
    assert "namespaces: unshare user namespace: Operation not permitted; to fix it, allow user namespaces" in error
    assert "landlock: query the Landlock version: Operation not permitted; to fix it, use Linux 5.13" in error
    report = found["report"]
    assert isinstance(report, list)
    assert report[0] == "sandbox: none: tools that run code cannot be used"
    assert len(report) == 3


def test_start_does_not_replace_a_requested_tier() -> None:
    assert "tier" not in start_with_refused(*NAMESPACES, tier="namespaces")
    assert "tier" not in start_with_refused(*LANDLOCK, tier="landlock")


def test_report_names_tiers_and_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    few = partial(Sandbox.start, packages=("numpy",))  # SymPy's import takes a second
    monkeypatch.setattr(host, "Sandbox", SimpleNamespace(start=few))
    lines = sandbox_report()
    assert lines[0].startswith("sandbox: ")
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["namespaces", "landlock"]
    if lines[0] != "sandbox: none: tools that run code cannot be used":
        working = next(line for line in lines[1:] if " works (" in line)
        assert "numpy 2" in working or "no packages" in working


def test_start_names_an_unsupported_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.sys, "platform", "darwin")
    monkeypatch.setattr(probe.platform, "system", lambda: "Darwin")
    with pytest.raises(SandboxUnavailable, match="needs Linux; this is Darwin"):
        asyncio.run(Sandbox.start())
    assert sandbox_report() == ["sandbox: none: the sandbox needs Linux; this is Darwin"]


def test_start_names_an_unsupported_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.platform, "machine", lambda: "riscv64")
    with pytest.raises(UserError, match="supports x86_64 and aarch64; this machine is riscv64"):
        asyncio.run(Sandbox.start())


LEAKS = {
    "a read": "session code could True ['read a file of the host']",
    "a write": "session code changed a file of the host",
    "a removal": "session code removed a file of the host",
    "a crash": "the first call ended with status killed: it died",
}


@pytest.mark.parametrize("leak", LEAKS)
def test_self_test_detects_a_leak(leak: str) -> None:
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


def test_start_without_packages_imports_none() -> None:
    async def start() -> RunResult:
        async with await Sandbox.start(packages=()) as box, box.session() as session:
            assert box.packages == {}
            return await session.run("import sys\n{'numpy', 'sympy'} & set(sys.modules)")

    assert asyncio.run(start()).value == "set()"
