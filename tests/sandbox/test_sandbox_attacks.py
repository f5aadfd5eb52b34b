"""Run every attack in every tier, as root and as another user; canaries on the host show damage."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sandbox_canaries_for_tests import MARK, Canaries
from sandbox_driver_for_tests import fill

from work_for_tests import wait_until

HERE = Path(__file__).parent
DRIVER = HERE / "sandbox_driver_for_tests.py"
AS_USER = HERE / "sandbox_user_for_tests.py"
OTHER_USER = "12345"
WHO = {
    "as this user": [],
    "as another user": [str(AS_USER), OTHER_USER],
    "as root with a Python for all": [str(AS_USER), "0"],
}
RUNS_ALL = ("as this user", "as another user") if "TURNWISE_SOAK" in os.environ else ("as this user",)


def run_attacks(tier: str, who: str) -> dict[str, str]:
    """Run the driver; return problems by attack, and notes whose names start with _.

    Another user id changes what a session can reach, but nothing about time, output or protocol; `make soak` runs all
    attacks as another user too.
    """
    which = "attacks" if who in RUNS_ALL else "outward"
    environment = {**os.environ, "PYTHONPATH": f"{HERE}:{Path(__file__).parents[2] / 'src'}"}
    command = [sys.executable, *WHO[who], str(DRIVER), which, tier]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("tier", "who"),
    [
        ("namespaces", "as this user"),
        ("namespaces", "as another user"),
        ("landlock", "as this user"),
        ("landlock", "as another user"),
        ("landlock", "as root with a Python for all"),
    ],
)
def test_sandbox_withstands_all_attacks(tier: str, who: str) -> None:
    if WHO[who] and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    found = run_attacks(tier, who)
    if "start" in found:
        pytest.skip(found["start"])
    assert int(found["_count"]) >= (80 if who in RUNS_ALL else 15)
    assert "a user id for each" in found["_jail"] or not who.startswith("as root")
    assert {name: problem for name, problem in found.items() if not name.startswith("_")} == {}


ALLOWED_WITH_OWN_ROOT = {
    "read files of the host": "BROKEN [2, 17]",
    "write files of the host": "BROKEN [16, 17, 18]",
    "a shell is not there": "BROKEN",
}
"""Not attacks on a root of one's own: reading its /etc/passwd and /home, writing into its /, /etc and /dev, a shell."""


def test_sandbox_with_own_root_withstands_all_attacks() -> None:
    found = run_attacks("own_root", "as this user")
    if "start" in found:
        pytest.skip(found["start"])
    assert {name: problem for name, problem in found.items() if not name.startswith("_")} == ALLOWED_WITH_OWN_ROOT


DAMAGES = {
    "open('$FILE').read()": "a secret of the host came out",
    "open('$FILE', 'a').write('x')": "changed on the host: ['content'",
    "os.chmod('$FILE', 0o600)": "changed on the host: ['mode",
    "os.unlink('$FILE')": "changed on the host: ['names'",
    "socket.create_connection(('127.0.0.1', $PORT), 1)": "the tcp socket of the host was reached",
    "socket.socket(socket.AF_UNIX, 2).sendto(b'x', '\\0$ABSTRACT-datagram')": "the abstract datagram socket",
    "os.kill($VICTIM, 9)": "changed on the host: ['victim lives'",
    "os.setpriority(os.PRIO_PROCESS, $VICTIM, 12)": 'changed on the host: ["victim\'s priority"',
}
"""Damage to a canary, and how it is reported. This code runs without a sandbox and must touch only the canary."""


@pytest.mark.parametrize("line", DAMAGES)
def test_canaries_report_damage(line: str) -> None:
    """The test does the damage itself, to prove that the canaries can detect it."""
    canaries = Canaries()
    try:
        code = fill(f"import os, socket\nprint({line})", canaries.words())
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
        secret = "a secret of the host came out" if MARK in done.stdout else None
        assert wait_until(lambda: (secret or canaries.damage() or "").startswith(DAMAGES[line]))
    finally:
        canaries.close()


def test_canaries_report_nothing_if_unharmed() -> None:
    canaries = Canaries()
    try:
        assert canaries.damage() is None
    finally:
        canaries.close()
