"""Looks at processes that are about to end: what fails because of that says nothing of why they ended."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from turnwise.sandbox.processes import buffer_bytes, count_mappings, ignore_exited, unlinked_file_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
NOBODY = 65534


def run_as_user(work: Callable[[], None]) -> None:
    """In a child that is not root: to root nothing is forbidden."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if os.geteuid() == 0:
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def ended_child() -> int:
    """Of a process that has ended and was not waited for: its files in /proc are root's."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    return child


def test_ended_process_holds_nothing_and_is_no_failure() -> None:
    def look() -> None:
        child = ended_child()
        with pytest.raises(PermissionError):
            list(Path(f"/proc/{child}/fd").iterdir())
        assert unlinked_file_bytes(child, "/tmp", most_each=1) == 0
        assert buffer_bytes([child] * 100, 1) == 0
        assert count_mappings([child], 10) == 0

    run_as_user(look)


def test_living_process_that_cannot_be_read_is_a_failure() -> None:
    """What cannot be watched must not run."""
    with pytest.raises(PermissionError), ignore_exited(os.getpid()):
        raise PermissionError("a process that is there")
