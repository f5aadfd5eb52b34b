"""Which user a process is inside a user namespace, and outside of it.

Root is mapped to an unprivileged user and left behind: RLIMIT_NPROC does not bind user 0, even in a user namespace.
"""

import os

from turnwise.sandbox import syscalls as sys_calls
from turnwise.sandbox.errors import JailError
from turnwise.sandbox.process_files import write_under

INSIDE_ID = 1000
OUTSIDE_ID = 60705
"""Who root's sessions are to the host: a number that distributions leave unused."""


def map_own_ids(proc: int, *, user: int, group: int) -> None:
    """In a new user namespace: this user, as the namespace around it calls it, and no other."""
    write_under(proc, "self/setgroups", "deny")
    write_under(proc, "self/uid_map", f"{INSIDE_ID} {user} 1")
    write_under(proc, "self/gid_map", f"{INSIDE_ID} {group} 1")


def leave_root() -> None:
    """Become the only user of the namespace; the capabilities inside it stay."""
    sys_calls.prctl("keep capabilities", sys_calls.PR_SET_KEEPCAPS, 1)
    os.setresgid(INSIDE_ID, INSIDE_ID, INSIDE_ID)
    os.setresuid(INSIDE_ID, INSIDE_ID, INSIDE_ID)


def map_root_ids(proc: int, flags: int) -> None:
    """Unshare as root. Another user may be mapped only from outside the namespace: a child stays there and does it."""
    ready, start = os.pipe()
    parent = os.getpid()
    helper = os.fork()
    if helper == 0:
        os.close(start)
        os._exit(_write_maps(proc, parent, ready))
    try:
        sys_calls.unshare("unshare user namespace", sys_calls.CLONE_NEWUSER | flags)
        os.write(start, b"1")
    finally:
        os.close(start)
        os.close(ready)
        status = os.waitpid(helper, 0)[1]
    if status:
        raise JailError(f"map user {OUTSIDE_ID} into a user namespace: refused")


def _write_maps(proc: int, pid: int, ready: int) -> int:
    if os.read(ready, 1) != b"1":  # the parent could not unshare; its end of the pipe is closed
        return 1
    try:
        write_under(proc, f"{pid}/uid_map", f"{INSIDE_ID} {OUTSIDE_ID} 1")
        write_under(proc, f"{pid}/gid_map", f"{INSIDE_ID} {OUTSIDE_ID} 1")
    except JailError:
        return 1
    return 0
