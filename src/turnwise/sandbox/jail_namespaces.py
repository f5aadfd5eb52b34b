"""First tier: Linux namespaces.

The zygote enters user, mount, network, IPC and UTS namespaces, swaps its root for a small read-only one that contains
only the Python installation, then enters a pid namespace. Each session adds pid, mount and user namespaces of its own
and a size-limited scratch folder in memory; it has no /proc.

Root is mapped to an unprivileged user and dropped: RLIMIT_NPROC does not bind user 0, even in a user namespace.
"""

# Paths here are plain strings, as system calls take them.
# ruff: noqa: PTH102, PTH103, PTH112, PTH120, PTH211

import fcntl
import os
import signal
import socket
import struct
from pathlib import Path

from turnwise.sandbox import syscalls
from turnwise.sandbox.jail import (
    address_space_bytes,
    open_path,
    open_proc,
    prefer_for_oom_kill,
    set_resource_limits,
    write_proc_file,
)
from turnwise.sandbox.python_install import DEVICES, PROC, SOCKETS, PythonInstall, loaded_libraries
from turnwise.sandbox.seccomp import agent_rules, compile_filter, install_filter, namespaces_rules
from turnwise.sandbox.session_root import build_session_root
from turnwise.sandbox.syscalls import JailError
from turnwise.sandbox.types import SandboxLimits

NEW_ROOT = "/tmp"
"""Mount point for building the new root. The mount namespace is private: no other process sees it."""
SCRATCH = "/scratch"
SHARED_MEMORY = f"{SCRATCH}/.shm"
MOUNT_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV
SIOCSIFFLAGS = 0x8914
IFF_UP = 0x1
PROC_FLAGS = MOUNT_FLAGS | syscalls.MS_NOEXEC | syscalls.MS_RDONLY
"""Read-only: otherwise the program of an agent could write into the memory of the session's first process."""
INSIDE_ID = 1000
OUTSIDE_ID = 60705
"""Host user id of sessions started by root; distributions leave the number unused."""


class NamespacesJail:
    """Jail of the first tier; see `Jail` for the order of calls."""

    single_process = False

    def __init__(self, limits: SandboxLimits, python: PythonInstall) -> None:
        self.limits = limits
        self.python = python
        self.program = compile_filter(namespaces_rules() if python.agent is None else agent_rules())
        self.base_bytes = 0
        self.libraries: list[str] = []
        self.proc = open_proc()
        self.zygote_pids = -1
        self.parent = os.getppid()

    def build(self) -> None:
        """Build the root. Returns in a child, the new zygote; the calling process waits for it and exits."""
        namespaces = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
        user, group = os.geteuid(), os.getegid()
        if user == 0:
            os.setgroups([])
            unshare_as_root(self.proc, namespaces)
        else:
            syscalls.unshare("unshare user namespace", syscalls.CLONE_NEWUSER | namespaces)
            map_own_ids(self.proc, user=user, group=group)
        socket.sethostname("sandbox")
        self._build_root()
        syscalls.unshare("unshare pid namespace", syscalls.CLONE_NEWPID)
        self._become_first_process()
        self.zygote_pids = os.open("self/ns/pid", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.proc)

    def measure_base_memory(self) -> None:
        self.base_bytes = address_space_bytes(self.proc)

    def before_fork(self) -> str:
        """Make the next child the first process of a new pid namespace."""
        syscalls.unshare("unshare pid namespace of a session", syscalls.CLONE_NEWPID)
        return SCRATCH

    def after_fork(self) -> None:
        syscalls.setns("return to the zygote's pid namespace", self.zygote_pids, syscalls.CLONE_NEWPID)

    def enter(self, scratch: str) -> None:
        os.setsid()
        network = 0
        if self.python.agent is not None:
            network = syscalls.CLONE_NEWNET
            syscalls.unshare("unshare mount namespace of a session", syscalls.CLONE_NEWNS)
            syscalls.mount("proc", PROC, filesystem="proc", flags=PROC_FLAGS)  # while it may: the zygote's user owns it
        syscalls.unshare("unshare namespaces of a session", syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS | network)
        syscalls.prctl("allow the watchdog to read /proc", syscalls.PR_SET_DUMPABLE, 1)
        map_own_ids(self.proc, user=INSIDE_ID, group=INSIDE_ID)
        prefer_for_oom_kill(self.proc)
        if network:
            start_loopback()
        data = f"size={self.limits.scratch_mb}m,nr_inodes={self.limits.files},mode=0700"
        syscalls.mount("tmpfs", scratch, filesystem="tmpfs", flags=MOUNT_FLAGS, data=data)
        if self.python.own_root:
            build_session_root(scratch, self.python, self.libraries)
            return
        os.mkdir(SHARED_MEMORY, 0o700)
        os.chdir(scratch)

    def seal(self) -> None:
        base_bytes = self.base_bytes if self.python.agent is None else None  # runtimes reserve much more than they use
        set_resource_limits(self.limits, base_bytes=base_bytes, count_processes=True)
        syscalls.drop_capabilities()
        syscalls.set_no_new_privileges()
        syscalls.prctl("allow the watchdog to read /proc", syscalls.PR_SET_DUMPABLE, 1)
        syscalls.die_with_parent(signal.SIGKILL)
        install_filter(self.program)

    def remove(self, scratch: str) -> int | None:
        """Nothing to remove: the scratch folder ends with its mount namespace."""
        return None

    def describe(self) -> str:
        return "user, mount, pid, network and IPC namespaces"

    def close(self) -> None:
        """Nothing to remove: mounts end with their namespace."""

    def _build_root(self) -> None:
        """Build a read-only root in memory with the Python installation bound into it, and pivot to it."""
        python = self.python
        libraries = self.libraries = loaded_libraries(python.roots)
        agent = python.agent
        programs = () if agent is None else agent.folders
        paths = (*python.roots, *libraries, *python.packages, *programs, *DEVICES)
        handles = {path: open_path(path) for path in paths}
        if agent is not None:
            handles |= {SOCKETS: open_path(agent.sockets), PROC: open_path(PROC)}
        syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
        drop_root()
        syscalls.mount(
            "tmpfs", NEW_ROOT, filesystem="tmpfs", flags=MOUNT_FLAGS, data="size=4m,nr_inodes=4096,mode=0755"
        )
        for path in (*python.roots, *libraries):
            _bind(handles[path], path)
        for path in python.hidden:
            syscalls.mount(
                "tmpfs", NEW_ROOT + path, filesystem="tmpfs", flags=MOUNT_FLAGS, data="size=64k,nr_inodes=256,mode=0755"
            )
        for path in python.packages:
            _bind(handles[path], path)
        for path in python.hidden:
            syscalls.make_read_only(NEW_ROOT + path)
        for path in programs:
            _bind(handles[path], path)
        if agent is not None:
            _bind(handles[SOCKETS], SOCKETS)
            _bind(handles[PROC], PROC)  # the kernel mounts a session's own only where one is visible
        for path in DEVICES:
            _bind(handles[path], path, device=True)
        for path, target in python.links:
            _make_parents(NEW_ROOT + path)
            if not os.path.lexists(NEW_ROOT + path):
                os.symlink(target, NEW_ROOT + path)
        os.makedirs(NEW_ROOT + SCRATCH, exist_ok=True)
        if not os.path.lexists(f"{NEW_ROOT}/tmp"):  # keep an interpreter installed in /tmp visible
            os.symlink(SCRATCH, f"{NEW_ROOT}/tmp")
        os.symlink(SHARED_MEMORY, f"{NEW_ROOT}/dev/shm")
        syscalls.pivot_root(NEW_ROOT)
        syscalls.make_read_only("/")
        for descriptor in handles.values():
            os.close(descriptor)

    def _become_first_process(self) -> None:
        """Fork into the new pid namespace. The parent stays outside until the zygote exits."""
        child = os.fork()
        if child:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            syscalls.die_with_parent(signal.SIGKILL)
            os.closerange(0, 1024)
            if os.getppid() == self.parent:
                os.waitpid(child, 0)
            os._exit(0)  # kills the zygote if it is still alive
        syscalls.prctl("allow reading its own /proc", syscalls.PR_SET_DUMPABLE, 1)
        syscalls.die_with_parent(signal.SIGKILL)


def start_loopback() -> None:
    """Set the loopback interface of this process's network up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh14x", b"lo", IFF_UP)
        fcntl.ioctl(probe, SIOCSIFFLAGS, request)


def _make_parents(path: str) -> None:
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)


def _bind(descriptor: int, path: str, *, device: bool = False) -> None:
    """Bind-mount a handle read-only at the same path under the new root."""
    target = NEW_ROOT + path
    _make_parents(target)
    source = f"/proc/self/fd/{descriptor}"
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        Path(target).touch()
    syscalls.mount(source, target, flags=syscalls.MS_BIND | syscalls.MS_REC)
    syscalls.make_read_only(target, below=True, devices=device)


def map_own_ids(proc: int, *, user: int, group: int) -> None:
    """Map one user and group of the parent namespace into this new user namespace."""
    write_proc_file(proc, "self/setgroups", "deny")
    write_proc_file(proc, "self/uid_map", f"{INSIDE_ID} {user} 1")
    write_proc_file(proc, "self/gid_map", f"{INSIDE_ID} {group} 1")


def drop_root() -> None:
    """Become the only user of the namespace, keeping the capabilities inside it."""
    syscalls.prctl("keep capabilities", syscalls.PR_SET_KEEPCAPS, 1)
    os.setresgid(INSIDE_ID, INSIDE_ID, INSIDE_ID)
    os.setresuid(INSIDE_ID, INSIDE_ID, INSIDE_ID)


def unshare_as_root(proc: int, flags: int) -> None:
    """Unshare and map root to an unprivileged user. Only a process outside may map another user: a child does it."""
    ready, start = os.pipe()
    parent = os.getpid()
    helper = os.fork()
    if helper == 0:
        os.close(start)
        os._exit(_write_maps(proc, parent, ready))
    try:
        syscalls.unshare("unshare user namespace", syscalls.CLONE_NEWUSER | flags)
        os.write(start, b"1")
    finally:
        os.close(start)
        os.close(ready)
        status = os.waitpid(helper, 0)[1]
    if status:
        raise JailError(f"map user {OUTSIDE_ID} into a user namespace: refused")


def _write_maps(proc: int, pid: int, ready: int) -> int:
    if os.read(ready, 1) != b"1":  # the parent could not unshare and closed the pipe
        return 1
    try:
        write_proc_file(proc, f"{pid}/uid_map", f"{INSIDE_ID} {OUTSIDE_ID} 1")
        write_proc_file(proc, f"{pid}/gid_map", f"{INSIDE_ID} {OUTSIDE_ID} 1")
    except JailError:
        return 1
    return 0
