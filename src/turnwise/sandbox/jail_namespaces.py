"""First tier: namespaces. The zygote moves into a root that holds nothing but the prefix; a session is alone in it.

Zygote: user, mount, network, IPC and host-name namespaces, a small read-only root, then a pid namespace of its own.
Session: pid, mount and user namespaces inside these, a scratch folder in memory with a size, no /proc.
"""

import os

# Paths are the kernel's here: plain strings beside descriptors.
# ruff: noqa: PTH102, PTH103, PTH112, PTH120, PTH211
import signal
import socket
from pathlib import Path

from turnwise.sandbox import syscalls as sys_calls
from turnwise.sandbox.jail import (
    address_space_bytes,
    open_proc,
    prefer_for_oom_kill,
    set_resource_limits,
    write_proc_file,
)
from turnwise.sandbox.python_install import DEVICES, PythonInstall, loaded_libraries
from turnwise.sandbox.seccomp import compile_filter, install_filter, namespaces_rules
from turnwise.sandbox.syscalls import JailError
from turnwise.sandbox.types import SandboxLimits

NEW_ROOT = "/tmp"
"""Where the new root is put together; the namespace is private, nobody else sees it there."""
SCRATCH = "/scratch"
SHARED_MEMORY = f"{SCRATCH}/.shm"
QUIET = sys_calls.MS_NOSUID | sys_calls.MS_NODEV


INSIDE_ID = 1000
OUTSIDE_ID = 60705
"""Who root's sessions are to the host: a number that distributions leave unused."""


class NamespacesJail:
    """Built in the zygote; `enter` is for the child that becomes a session."""

    single_process = False

    def __init__(self, limits: SandboxLimits, prefix: PythonInstall) -> None:
        self.limits = limits
        self.prefix = prefix
        self.program = compile_filter(namespaces_rules())
        self.base_bytes = 0
        self.proc = open_proc()
        self.own_pids = -1
        self.parent = os.getppid()

    def build(self) -> None:
        """Returns in the process that is to be the zygote; the one that called it waits for that one and ends."""
        everything = sys_calls.CLONE_NEWNS | sys_calls.CLONE_NEWNET | sys_calls.CLONE_NEWIPC | sys_calls.CLONE_NEWUTS
        user, group = os.geteuid(), os.getegid()
        if user == 0:
            os.setgroups([])
            unshare_as_root(self.proc, everything)
        else:
            sys_calls.unshare("unshare user namespace", sys_calls.CLONE_NEWUSER | everything)
            map_own_ids(self.proc, user=user, group=group)
        socket.sethostname("sandbox")
        self._build_root()
        sys_calls.unshare("unshare pid namespace", sys_calls.CLONE_NEWPID)
        self._become_first_process()
        self.own_pids = os.open("self/ns/pid", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.proc)

    def loaded(self) -> None:
        """All is imported: what the libraries took is not counted against a session."""
        self.base_bytes = address_space_bytes(self.proc)

    def before_fork(self) -> str:
        """The next child is the first process of a new pid namespace. Gives the session's scratch folder."""
        sys_calls.unshare("unshare pid namespace of a session", sys_calls.CLONE_NEWPID)
        return SCRATCH

    def after_fork(self) -> None:
        sys_calls.setns("return to the zygote's pid namespace", self.own_pids, sys_calls.CLONE_NEWPID)

    def enter(self, scratch: str) -> None:
        """In the child, before any code of the session."""
        os.setsid()
        sys_calls.unshare("unshare namespaces of a session", sys_calls.CLONE_NEWUSER | sys_calls.CLONE_NEWNS)
        sys_calls.prctl("make it readable for the watchdog", sys_calls.PR_SET_DUMPABLE, 1)
        map_own_ids(self.proc, user=INSIDE_ID, group=INSIDE_ID)
        prefer_for_oom_kill(self.proc)
        data = f"size={self.limits.scratch_mb}m,nr_inodes={self.limits.files},mode=0700"
        sys_calls.mount("tmpfs", scratch, kind="tmpfs", flags=QUIET, data=data)
        os.mkdir(SHARED_MEMORY, 0o700)
        os.chdir(scratch)

    def seal(self) -> None:
        """The last steps, after which nothing can be undone."""
        set_resource_limits(self.limits, base_bytes=self.base_bytes, count_processes=True)
        sys_calls.drop_capabilities()
        sys_calls.set_no_new_privileges()
        sys_calls.prctl("make it readable for the watchdog", sys_calls.PR_SET_DUMPABLE, 1)
        sys_calls.die_with_parent(signal.SIGKILL)
        install_filter(self.program)

    def remove(self, scratch: str) -> int | None:
        """Nothing to do: a scratch folder goes with its namespace."""
        return None

    def describe(self) -> str:
        return "user, mount, pid, network and IPC namespaces"

    def close(self) -> None:
        """Nothing to do: mounts go with their namespace."""

    def _build_root(self) -> None:
        """A root in memory with the prefix bound into it, read-only; then it is the only root."""
        prefix = self.prefix
        files = loaded_libraries(prefix.roots)
        folders = {path: _open_path(path) for path in (*prefix.roots, *files, *prefix.packages, *DEVICES)}
        sys_calls.mount("none", "/", flags=sys_calls.MS_REC | sys_calls.MS_PRIVATE)
        drop_root()
        sys_calls.mount("tmpfs", NEW_ROOT, kind="tmpfs", flags=QUIET, data="size=4m,nr_inodes=4096,mode=0755")
        for path in (*prefix.roots, *files):
            _bind(folders[path], path)
        for path in prefix.hidden:
            sys_calls.mount(
                "tmpfs", NEW_ROOT + path, kind="tmpfs", flags=QUIET, data="size=64k,nr_inodes=256,mode=0755"
            )
        for path in prefix.packages:
            _bind(folders[path], path)
        for path in prefix.hidden:
            sys_calls.make_read_only(NEW_ROOT + path)
        for path in DEVICES:
            _bind(folders[path], path, device=True)
        for where, what in prefix.links:
            _make_parents(NEW_ROOT + where)
            if not os.path.lexists(NEW_ROOT + where):
                os.symlink(what, NEW_ROOT + where)
        os.makedirs(NEW_ROOT + SCRATCH, exist_ok=True)
        if not os.path.lexists(f"{NEW_ROOT}/tmp"):  # an interpreter that lies there stays to be seen
            os.symlink(SCRATCH, f"{NEW_ROOT}/tmp")
        os.symlink(SHARED_MEMORY, f"{NEW_ROOT}/dev/shm")
        sys_calls.pivot_root(NEW_ROOT)
        sys_calls.make_read_only("/")
        for descriptor in folders.values():
            os.close(descriptor)

    def _become_first_process(self) -> None:
        """Forks into the new pid namespace. The parent stays, outside, for as long as the zygote lives."""
        child = os.fork()
        if child:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            sys_calls.die_with_parent(signal.SIGKILL)
            os.closerange(0, 1024)
            if os.getppid() == self.parent:
                os.waitpid(child, 0)
            os._exit(0)  # which kills the zygote, where it still lives
        sys_calls.prctl("allow reading its own /proc", sys_calls.PR_SET_DUMPABLE, 1)
        sys_calls.die_with_parent(signal.SIGKILL)


def _open_path(path: str) -> int:
    """A handle that survives the change of user: a home folder may be closed to the user that sessions run as."""
    try:
        return os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise JailError(f"open {path}: {error.strerror}") from None


def _make_parents(path: str) -> None:
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)


def _bind(descriptor: int, path: str, *, device: bool = False) -> None:
    """At the same path under the new root."""
    target = NEW_ROOT + path
    _make_parents(target)
    source = f"/proc/self/fd/{descriptor}"
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        Path(target).touch()
    sys_calls.mount(source, target, flags=sys_calls.MS_BIND | sys_calls.MS_REC)
    sys_calls.make_read_only(target, below=True, devices=device)


def map_own_ids(proc: int, *, user: int, group: int) -> None:
    """In a new user namespace: this user, as the namespace around it calls it, and no other."""
    write_proc_file(proc, "self/setgroups", "deny")
    write_proc_file(proc, "self/uid_map", f"{INSIDE_ID} {user} 1")
    write_proc_file(proc, "self/gid_map", f"{INSIDE_ID} {group} 1")


def drop_root() -> None:
    """Become the only user of the namespace; the capabilities inside it stay."""
    sys_calls.prctl("keep capabilities", sys_calls.PR_SET_KEEPCAPS, 1)
    os.setresgid(INSIDE_ID, INSIDE_ID, INSIDE_ID)
    os.setresuid(INSIDE_ID, INSIDE_ID, INSIDE_ID)


def unshare_as_root(proc: int, flags: int) -> None:
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
        write_proc_file(proc, f"{pid}/uid_map", f"{INSIDE_ID} {OUTSIDE_ID} 1")
        write_proc_file(proc, f"{pid}/gid_map", f"{INSIDE_ID} {OUTSIDE_ID} 1")
    except JailError:
        return 1
    return 0
