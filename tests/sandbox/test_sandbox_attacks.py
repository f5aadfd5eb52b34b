"""Every attack, in every tier, as root and as another user; the host's canaries are the judges."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandbox_driver_for_tests import filled
from sandbox_ground_for_tests import MARK, Ground

HERE = Path(__file__).parent
DRIVER = HERE / "sandbox_driver_for_tests.py"
AS_USER = HERE / "sandbox_user_for_tests.py"
OTHER_USER = "12345"
WHO = {
    "as you": [],
    "as another user": [str(AS_USER), OTHER_USER],
    "as root with a Python for all": [str(AS_USER), "0"],
}


def attacked(tier: str, who: str) -> dict[str, str]:
    """What the driver found: problems by attack, and notes whose names begin with _.

    A user id for each session changes what a session can reach, and nothing about time, output or protocol.
    """
    which = "outward" if who.startswith("as root") else "attacks"
    environment = {**os.environ, "PYTHONPATH": f"{HERE}:{Path(__file__).parents[2] / 'src'}"}
    command = [sys.executable, *WHO[who], str(DRIVER), which, tier]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("tier", "who"),
    [
        ("namespaces", "as you"),
        ("namespaces", "as another user"),
        ("landlock", "as you"),
        ("landlock", "as another user"),
        ("landlock", "as root with a Python for all"),
    ],
)
def test_no_attack_gets_through(tier: str, who: str) -> None:
    if WHO[who] and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    found = attacked(tier, who)
    if "start" in found:
        pytest.skip(found["start"])
    assert int(found["_count"]) >= (15 if who.startswith("as root") else 80)
    assert "a user id for each" in found["_jail"] or not who.startswith("as root")
    assert {name: problem for name, problem in found.items() if not name.startswith("_")} == {}


SONGS = {
    "open('$FILE').read()": "a secret of the host came out",
    "open('$FILE', 'a').write('x')": "changed on the host: ['content'",
    "os.chmod('$FILE', 0o600)": "changed on the host: ['mode",
    "os.unlink('$FILE')": "changed on the host: ['names'",
    "socket.create_connection(('127.0.0.1', $PORT), 1)": "the tcp socket of the host was reached",
    "socket.socket(socket.AF_UNIX, 2).sendto(b'x', '\\0$ABSTRACT-datagram')": "the abstract datagram socket",
    "os.kill($VICTIM, 9)": "changed on the host: ['victim lives'",
    "os.setpriority(os.PRIO_PROCESS, $VICTIM, 12)": 'changed on the host: ["victim\'s priority"',
}
"""Harm done to a canary, and what its judge says. Only ever to the canary: this code runs with no walls around it."""


@pytest.mark.parametrize("line", SONGS)
def test_a_canary_that_is_harmed_sings(line: str) -> None:
    """A judge that never convicts would prove nothing; here the harm is done by the test itself, without a sandbox."""
    ground = Ground()
    try:
        code = filled(f"import os, socket\nprint({line})", ground.words())
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
        time.sleep(0.05)
        secret = "a secret of the host came out" if MARK in done.stdout else None
        assert (secret or ground.harm() or "").startswith(SONGS[line])
    finally:
        ground.close()


def test_unharmed_canaries_are_silent() -> None:
    ground = Ground()
    try:
        assert ground.harm() is None
    finally:
        ground.close()
