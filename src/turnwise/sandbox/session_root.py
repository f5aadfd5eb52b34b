"""A root of its own for a session: a writable file system in memory with this machine's programs in it, read-only.

For shells, which expect the folders of a Linux machine. Everything that the session writes is in one tmpfs, whose size
the kernel limits and which ends with the session.
"""

# Paths here are plain strings, as system calls take them.
# ruff: noqa: PTH101, PTH103, PTH112, PTH120, PTH123, PTH211

import os
import shlex
from collections.abc import Sequence

from turnwise.sandbox import syscalls
from turnwise.sandbox.python_install import DEVICES, PROC, SOCKETS, PythonInstall, python_executable

FOLDERS = ("/dev/shm", "/etc", "/home", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/usr/local/bin", "/var/tmp")
PYTHON_FOLDER = "/opt/python/bin"
"""This Python under its usual names: programs, since an interpreter behind a link does not find its packages."""
OPEN_FOLDERS = ("/dev/shm", "/tmp", "/var/tmp")
"""Folders with mode 1777."""
USER = 1000
FILES = {
    "/etc/passwd": f"root:x:0:0:root:/root:/bin/bash\nagent:x:{USER}:{USER}:agent:/root:/bin/bash\n",
    "/etc/group": f"root:x:0:\nagent:x:{USER}:\n",
    "/etc/hosts": "127.0.0.1 localhost\n",
    "/etc/hostname": "sandbox\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


def build_session_root(folder: str, python: PythonInstall, libraries: Sequence[str]) -> None:
    """Fill the tmpfs that is mounted at `folder`, and make it the root. `libraries`: files outside of the roots."""
    for path in FOLDERS:
        os.makedirs(folder + path, mode=0o755, exist_ok=True)
    inside = tuple(f"{root}/" for root in python.roots)
    packages = [path for path in python.packages if not path.startswith(inside)]  # others come with their root
    for path in (*python.roots, *libraries, *packages, *DEVICES):
        _bind_again(path, folder + path)
    for path, target in python.links:
        os.makedirs(os.path.dirname(folder + path), mode=0o755, exist_ok=True)
        if not os.path.lexists(folder + path):
            os.symlink(target, folder + path)
    for path, text in FILES.items():
        if not os.path.lexists(folder + path):
            with open(folder + path, "w", encoding="utf-8") as file:
                file.write(text)
    os.makedirs(folder + PYTHON_FOLDER, mode=0o755)
    for name in ("python", "python3"):
        with open(f"{folder}{PYTHON_FOLDER}/{name}", "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec {shlex.quote(python_executable())} "$@"\n')
            os.fchmod(file.fileno(), 0o755)
    if python.agent is not None:
        for path in (*python.agent.folders, SOCKETS, PROC):
            _bind_again(path, folder + path)
    for path in OPEN_FOLDERS:
        os.chmod(folder + path, 0o1777)
    os.chmod(folder, 0o755)
    syscalls.pivot_root(folder)


def _bind_again(path: str, target: str) -> None:
    """Bind a mount of the zygote's root. It stays read-only: a session's user namespace cannot change that."""
    if os.path.isdir(path):
        os.makedirs(target, mode=0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    syscalls.mount(path, target, flags=syscalls.MS_BIND | syscalls.MS_REC)
