"""Second tier: Landlock and a stricter filter, where the kernel gives no user namespaces.

Landlock says which files; the filter refuses processes, signals to others and what Landlock does not mediate (owners,
attributes; modes and times are faked). A session is one process. The names, sizes and times of other files stay
visible, their content does not.
"""

# Paths are the kernel's here: plain strings beside descriptors.
# ruff: noqa: PTH112

import ctypes
import os
import signal
import struct

from turnwise.sandbox import syscalls as sys_calls
from turnwise.sandbox.jail import address_space_bytes, open_proc, prefer_for_oom_kill, set_resource_limits
from turnwise.sandbox.python_install import DEVICES, PythonInstall, loaded_libraries, paths_without
from turnwise.sandbox.scratch_folders import ScratchFolders, remove_tree
from turnwise.sandbox.seccomp import compile_filter, install_filter, landlock_rules
from turnwise.sandbox.syscalls import JailError
from turnwise.sandbox.types import SandboxLimits

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = 1, 2, 4, 8, 16, 32
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = 64, 128, 256, 512, 1024, 2048, 4096
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
RIGHTS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
SCRATCH_RIGHTS = (
    WRITE_FILE
    | READ_FILE
    | READ_DIR
    | REMOVE_DIR
    | REMOVE_FILE
    | MAKE_DIR
    | MAKE_REG
    | MAKE_FIFO
    | MAKE_SYM
    | REFER
    | TRUNCATE
)
NETWORK_ABI, NETWORK_RIGHTS = 4, 3
SCOPE_ABI, SCOPES = 6, 3
VERSION_FLAG = 1
PATH_BENEATH = 1
FIRST_OWN_ID, OWN_IDS = 60706, 478
"""Users for root's sessions, one each: numbers that distributions leave unused."""


def landlock_abi() -> int:
    """The version that this kernel speaks; JailError where it speaks none."""
    nothing = ctypes.c_void_p(None)
    return sys_calls.syscall("ask for Landlock", "landlock_create_ruleset", nothing, 0, VERSION_FLAG)


class LandlockJail:
    """Built in the zygote, which stays outside; `enter` and `seal` are for the child that becomes a session."""

    single_process = True

    def __init__(self, limits: SandboxLimits, prefix: PythonInstall, scratch: str) -> None:
        self.limits = limits
        self.prefix = prefix
        self.folders = ScratchFolders(scratch)
        self.abi = landlock_abi()
        self.rights = max(right for abi, right in RIGHTS_BY_ABI.items() if abi <= self.abi)
        self.proc = open_proc()
        self.base_bytes = 0
        self.exact = -1
        self.coarse: list[tuple[int, int]] = []
        self.own_ids = False
        self.next_id = os.getpid() % OWN_IDS

    def build(self) -> None:
        """Landlock can only allow, so a folder with a hidden part is allowed entry by entry, once, in `exact`.

        A session adds a second, short ruleset: the same folders whole, and its own scratch folder. Both must agree.
        """
        closed = self.prefix.hidden
        opened = (*self.prefix.roots, *loaded_libraries(self.prefix.roots), *self.prefix.packages)
        self.exact = self._ruleset()
        for path in (part for root in opened for part in paths_without(root, closed)):
            self._allow(self.exact, path, READ_FILE | READ_DIR)
        for path in (*self.prefix.search_path, *closed):
            self._allow(self.exact, path, READ_DIR)  # names only: the import system lists them
        for path in DEVICES:
            self._allow(self.exact, path, READ_FILE | WRITE_FILE)
        self._allow(self.exact, self.folders.base, SCRATCH_RIGHTS)
        readable = dict.fromkeys((*opened, *self.prefix.search_path), READ_FILE | READ_DIR)
        writable = dict.fromkeys(DEVICES, READ_FILE | WRITE_FILE)
        self.coarse = [(_open(path), _fitting(path, rights)) for path, rights in {**readable, **writable}.items()]
        self.own_ids = os.geteuid() == 0 and self._others_can_read()

    def loaded(self) -> None:
        self.base_bytes = address_space_bytes(self.proc)

    def before_fork(self) -> str:
        self.next_id = (self.next_id + 1) % OWN_IDS
        return self.folders.create(FIRST_OWN_ID + self.next_id if self.own_ids else None)

    def after_fork(self) -> None:
        """Nothing: the zygote did not change for the fork."""

    def enter(self, scratch: str) -> None:
        os.setsid()
        prefer_for_oom_kill(self.proc)
        os.chdir(scratch)
        if self.own_ids:
            os.setgroups([])
            identity = FIRST_OWN_ID + self.next_id
            os.setresgid(identity, identity, identity)
            os.setresuid(identity, identity, identity)
        sys_calls.drop_capabilities()
        sys_calls.set_no_new_privileges()
        own = self._ruleset()
        for descriptor, rights in self.coarse:
            self._allow_open(own, descriptor, rights)
        self._allow(own, scratch, SCRATCH_RIGHTS)
        for ruleset in (self.exact, own):
            sys_calls.syscall("restrict to the prefix", "landlock_restrict_self", ruleset, 0)

    def seal(self) -> None:
        """The limits come last: until its descriptors are closed, a session has those of all others."""
        set_resource_limits(self.limits, base_bytes=self.base_bytes, count_processes=self.own_ids)
        sys_calls.prctl("make it readable for the watchdog", sys_calls.PR_SET_DUMPABLE, 1)
        sys_calls.die_with_parent(signal.SIGKILL)
        install_filter(compile_filter(landlock_rules(os.getpid())))

    def remove(self, scratch: str) -> int | None:
        return self.folders.remove(scratch)

    def describe(self) -> str:
        if os.geteuid():
            return f"Landlock {self.abi}, sessions run as you"
        if self.own_ids:
            return f"Landlock {self.abi}, a user id for each session"
        return (
            f"Landlock {self.abi}, sessions run as root without capabilities, since other users cannot read this Python"
        )

    def close(self) -> None:
        """The host may be gone: then nobody else removes the folders."""
        remove_tree(self.folders.base)

    def _ruleset(self) -> int:
        """An empty one that mediates all that this kernel can mediate."""
        network = NETWORK_RIGHTS if self.abi >= NETWORK_ABI else 0
        scopes = SCOPES if self.abi >= SCOPE_ABI else 0
        words = (self.rights, network, scopes)[: 1 if self.abi < NETWORK_ABI else 2 if self.abi < SCOPE_ABI else 3]
        attr = struct.pack(f"{len(words)}Q", *words)
        return sys_calls.syscall(
            "create a Landlock ruleset", "landlock_create_ruleset", ctypes.c_char_p(attr), len(attr), 0
        )

    def _allow(self, ruleset: int, path: str, rights: int) -> None:
        descriptor = _open(path)
        self._allow_open(ruleset, descriptor, _fitting(path, rights))
        os.close(descriptor)

    def _allow_open(self, ruleset: int, descriptor: int, rights: int) -> None:
        attr = ctypes.c_char_p(struct.pack("=Qi", rights & self.rights, descriptor))
        sys_calls.syscall("add a Landlock rule", "landlock_add_rule", ruleset, PATH_BENEATH, attr, 0)

    def _others_can_read(self) -> bool:
        """Whether an unprivileged user reaches the prefix: Python may be installed in root's own home."""
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setresgid(FIRST_OWN_ID, FIRST_OWN_ID, FIRST_OWN_ID)
            os.setresuid(FIRST_OWN_ID, FIRST_OWN_ID, FIRST_OWN_ID)
            readable = all(os.access(path, os.R_OK) for path in (*self.prefix.roots, *self.prefix.packages))
            os._exit(0 if readable and os.access(self.folders.base, os.X_OK) else 1)
        return os.waitpid(child, 0)[1] == 0


def _fitting(path: str, rights: int) -> int:
    """A file takes file rights only."""
    return rights if os.path.isdir(path) else rights & (EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise JailError(f"open {path}: {error.strerror}") from None
