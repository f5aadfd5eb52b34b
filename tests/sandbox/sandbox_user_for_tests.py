"""Runs a Python program as another user, or as root where every user could read Python. Needs root.

    python sandbox_user_for_tests.py UID PROGRAM ARGUMENTS

Python may be installed in root's own home, which nobody else can enter: then this process gets mounts of its own, with
a folder in that home's place that holds the interpreter alone. Nothing of this is seen by other processes.
"""

import os
import sys
from pathlib import Path

from turnwise.sandbox import syscalls


def closed_ancestor(path: Path) -> Path | None:
    """The first folder on the way that other users cannot pass."""
    for folder in reversed(path.parents):
        if not folder.stat().st_mode & 0o001:
            return folder
    return None


def open_the_way(path: Path) -> None:
    closed = closed_ancestor(path)
    if closed is None:
        return
    syscalls.unshare("own mounts", syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    inside = os.open(path, os.O_PATH)
    syscalls.mount("tmpfs", str(closed), kind="tmpfs", data="mode=0755")
    path.mkdir(parents=True)
    syscalls.mount(f"/proc/self/fd/{inside}", str(path), flags=syscalls.MS_BIND | syscalls.MS_REC)
    os.close(inside)


if __name__ == "__main__":
    user = int(sys.argv[1])
    open_the_way(Path(sys.base_prefix))
    os.chdir("/")
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
