"""Run a Python program as another user, or as root with a Python that every user can read. Needs root.

    python sandbox_user_for_tests.py UID PROGRAM ARGUMENTS

Python may be installed in root's home, which other users cannot enter. This process then gets a private mount namespace
in which that home contains only the interpreter.
"""

import os
import sys
from pathlib import Path

from turnwise.sandbox import syscalls


def closed_ancestor(path: Path) -> Path | None:
    """Return the first parent folder that other users cannot enter."""
    for folder in reversed(path.parents):
        if not folder.stat().st_mode & 0o001:
            return folder
    return None


def make_reachable(path: Path) -> None:
    closed = closed_ancestor(path)
    if closed is None:
        return
    syscalls.unshare("own mounts", syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    inside = os.open(path, os.O_PATH)
    syscalls.mount("tmpfs", str(closed), filesystem="tmpfs", data="mode=0755")
    path.mkdir(parents=True)
    syscalls.mount(f"/proc/self/fd/{inside}", str(path), flags=syscalls.MS_BIND | syscalls.MS_REC)
    os.close(inside)


if __name__ == "__main__":
    user = int(sys.argv[1])
    make_reachable(Path(sys.base_prefix))
    os.chdir("/")
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
