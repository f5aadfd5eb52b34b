"""Second tier: Landlock with a stricter seccomp filter, where user namespaces are not available.

Landlock decides which files a session may open. The filter refuses further processes, signals to others, and what
Landlock does not mediate: owners and attributes are refused, modes and times faked. Names, sizes and times of other
files stay visible; their contents do not.
"""

# Paths here are plain strings, as system calls take them.
# ruff: noqa: PTH112

import ctypes
import os
import signal
import struct

from turnwise.sandbox import syscalls
from turnwise.sandbox.jail import address_space_bytes, open_path, open_proc, prefer_for_oom_kill, set_resource_limits
from turnwise.sandbox.python_install import DEVICES, PythonInstall, loaded_libraries, paths_without
from turnwise.sandbox.scratch_folders import ScratchFolders, remove_tree
from turnwise.sandbox.seccomp import compile_filter, install_filter, landlock_rules
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
FIRST_USER_ID, NUM_USER_IDS = 60706, 478
"""User ids for sessions started by root, one each; distributions leave them unused."""


def landlock_abi() -> int:
    """Return the kernel's Landlock ABI version; JailError if it has no Landlock."""
    null = ctypes.c_void_p(None)
    return syscalls.syscall("query the Landlock version", "landlock_create_ruleset", null, 0, VERSION_FLAG)


class LandlockJail:
    """Jail of the second tier. The zygote itself stays unrestricted; see `Jail` for the order of calls."""

    single_process = True

    def __init__(self, limits: SandboxLimits, python: PythonInstall, scratch: str) -> None:
        self.limits = limits
        self.python = python
        self.folders = ScratchFolders(scratch)
        self.abi = landlock_abi()
        self.rights = max(right for abi, right in RIGHTS_BY_ABI.items() if abi <= self.abi)
        self.proc = open_proc()
        self.base_bytes = 0
        self.exact = -1
        self.coarse: list[tuple[int, int]] = []
        self.user_per_session = False
        self.next_id = os.getpid() % NUM_USER_IDS

    def build(self) -> None:
        """Build the ruleset that all sessions share.

        Landlock can only allow, so a folder with a hidden part is allowed entry by entry, once, in `exact`. Each
        session adds a second, short ruleset with whole folders and its own scratch folder. Both must allow an access.
        """
        hidden = self.python.hidden
        readable = (*self.python.roots, *loaded_libraries(self.python.roots), *self.python.packages)
        self.exact = self._create_ruleset()
        for path in (part for root in readable for part in paths_without(root, hidden)):
            self._allow(self.exact, path, READ_FILE | READ_DIR)
        for path in (*self.python.search_path, *hidden):
            self._allow(self.exact, path, READ_DIR)  # names only: the import system lists these folders
        for path in DEVICES:
            self._allow(self.exact, path, READ_FILE | WRITE_FILE)
        self._allow(self.exact, self.folders.base, SCRATCH_RIGHTS)
        rights = dict.fromkeys((*readable, *self.python.search_path), READ_FILE | READ_DIR)
        rights |= dict.fromkeys(DEVICES, READ_FILE | WRITE_FILE)
        self.coarse = [(open_path(path), _applicable(path, allowed)) for path, allowed in rights.items()]
        self.user_per_session = os.geteuid() == 0 and self._others_can_read()

    def measure_base_memory(self) -> None:
        self.base_bytes = address_space_bytes(self.proc)

    def before_fork(self) -> str:
        self.next_id = (self.next_id + 1) % NUM_USER_IDS
        return self.folders.create(FIRST_USER_ID + self.next_id if self.user_per_session else None)

    def after_fork(self) -> None:
        """Nothing to undo."""

    def enter(self, scratch: str) -> None:
        os.setsid()
        prefer_for_oom_kill(self.proc)
        os.chdir(scratch)
        if self.user_per_session:
            os.setgroups([])
            user = FIRST_USER_ID + self.next_id
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        syscalls.drop_capabilities()
        syscalls.set_no_new_privileges()
        ruleset_of_session = self._create_ruleset()
        for descriptor, rights in self.coarse:
            self._allow_open(ruleset_of_session, descriptor, rights)
        self._allow(ruleset_of_session, scratch, SCRATCH_RIGHTS)
        for ruleset in (self.exact, ruleset_of_session):
            syscalls.syscall("restrict to the Python installation", "landlock_restrict_self", ruleset, 0)

    def seal(self) -> None:
        """Set limits after the descriptors of all other sessions are closed: they would exceed RLIMIT_NOFILE."""
        set_resource_limits(self.limits, base_bytes=self.base_bytes, count_processes=self.user_per_session)
        syscalls.prctl("allow the watchdog to read /proc", syscalls.PR_SET_DUMPABLE, 1)
        syscalls.die_with_parent(signal.SIGKILL)
        install_filter(compile_filter(landlock_rules(os.getpid())))

    def remove(self, scratch: str) -> int | None:
        return self.folders.remove(scratch)

    def describe(self) -> str:
        if os.geteuid():
            return f"Landlock {self.abi}, sessions run as this user"
        if self.user_per_session:
            return f"Landlock {self.abi}, a user id for each session"
        return f"Landlock {self.abi}, sessions run as root without capabilities: other users cannot read this Python"

    def close(self) -> None:
        """Remove the scratch folders, in case the host was killed."""
        remove_tree(self.folders.base)

    def _create_ruleset(self) -> int:
        """Create an empty ruleset that mediates everything this kernel can mediate."""
        network = NETWORK_RIGHTS if self.abi >= NETWORK_ABI else 0
        scopes = SCOPES if self.abi >= SCOPE_ABI else 0
        words = (self.rights, network, scopes)[: 1 if self.abi < NETWORK_ABI else 2 if self.abi < SCOPE_ABI else 3]
        attr = struct.pack(f"{len(words)}Q", *words)
        return syscalls.syscall(
            "create a Landlock ruleset", "landlock_create_ruleset", ctypes.c_char_p(attr), len(attr), 0
        )

    def _allow(self, ruleset: int, path: str, rights: int) -> None:
        descriptor = open_path(path)
        self._allow_open(ruleset, descriptor, _applicable(path, rights))
        os.close(descriptor)

    def _allow_open(self, ruleset: int, descriptor: int, rights: int) -> None:
        attr = ctypes.c_char_p(struct.pack("=Qi", rights & self.rights, descriptor))
        syscalls.syscall("add a Landlock rule", "landlock_add_rule", ruleset, PATH_BENEATH, attr, 0)

    def _others_can_read(self) -> bool:
        """Return whether an unprivileged user can read this Python, which may be installed in root's home."""
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setresgid(FIRST_USER_ID, FIRST_USER_ID, FIRST_USER_ID)
            os.setresuid(FIRST_USER_ID, FIRST_USER_ID, FIRST_USER_ID)
            readable = all(os.access(path, os.R_OK) for path in (*self.python.roots, *self.python.packages))
            os._exit(0 if readable and os.access(self.folders.base, os.X_OK) else 1)
        return os.waitpid(child, 0)[1] == 0


def _applicable(path: str, rights: int) -> int:
    """Keep only file rights if `path` is a file."""
    return rights if os.path.isdir(path) else rights & (EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE)
