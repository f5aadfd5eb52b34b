"""Reading /proc of processes that are exiting."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from turnwise.sandbox.processes import buffer_bytes, count_mappings, ignore_exited, unlinked_file_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
NOBODY_ID = 65534


def run_as_user(work: Callable[[], None]) -> None:
    """Run in a child that is not root, whom the kernel refuses nothing."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if os.geteuid() == 0:
                os.setresgid(NOBODY_ID, NOBODY_ID, NOBODY_ID)
                os.setresuid(NOBODY_ID, NOBODY_ID, NOBODY_ID)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def start_zombie() -> int:
    """Return an exited child that was not waited for: its files in /proc belong to root."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    return child


def test_exited_process_counts_as_empty() -> None:
    def look() -> None:
        child = start_zombie()
        with pytest.raises(PermissionError):
            list(Path(f"/proc/{child}/fd").iterdir())
        assert unlinked_file_bytes(child, "/tmp", max_file_bytes=1) == 0
        assert buffer_bytes([child] * 100, 1) == 0
        assert count_mappings([child], 10) == 0

    run_as_user(look)


def test_ignore_exited_raises_for_a_running_process() -> None:
    """A session that cannot be watched must not run."""
    with pytest.raises(PermissionError), ignore_exited(os.getpid()):
        raise PermissionError("a process that is there")
