"""What one session may use, and the resource limits that the kernel enforces for it."""

import resource
from dataclasses import dataclass, fields

from turnwise.core.errors import UserError

MEBIBYTE = 1024 * 1024
NO_CORE_FILE = 1
"""RLIMIT_CORE: a crash handler behind a pipe (apport, systemd) is run for 0, but not for 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxLimits:
    """Limits of one session; every call of it starts a new clock and a new output."""

    timeout_s: float = 5.0
    """Wall-clock time of one call; then the code is interrupted, and killed if it goes on."""
    memory_mb: int = 1024
    """Memory of the session's processes together, beyond what the imported libraries already took."""
    output_chars: int = 4000
    """Output, value and error are shortened in the middle to this many characters each."""
    output_mb: int = 4
    """A call that prints more than this is interrupted."""
    file_mb: int = 32
    """The size of one file."""
    scratch_mb: int = 64
    """All files of the session together."""
    files: int = 1024
    """The number of files and folders."""
    open_files: int = 128
    processes: int = 32
    """Processes and threads together, the interpreter included."""
    cpu_s: int = 600
    """Processor time of one process over the whole session; a backstop behind `timeout_s`."""
    code_chars: int = 100_000
    """Longer code is refused without being run."""
    grace_s: float = 0.5
    """How long interrupted code has to end before it is killed."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise UserError(f"sandbox: {field.name} is {value}; give a number above 0")


def set_resource_limits(limits: SandboxLimits, *, base_bytes: int, count_processes: bool) -> None:
    """For this process and its children, soft and hard alike so that nothing can be raised again.

    `count_processes`: only where the kernel counts this session's alone; elsewhere RLIMIT_NPROC counts all of a user's.
    """
    _limit(resource.RLIMIT_AS, base_bytes + limits.memory_mb * MEBIBYTE)
    _limit(resource.RLIMIT_FSIZE, limits.file_mb * MEBIBYTE)
    _limit(resource.RLIMIT_NOFILE, limits.open_files)
    _limit(resource.RLIMIT_CPU, limits.cpu_s)
    _limit(resource.RLIMIT_CORE, NO_CORE_FILE)
    _limit(resource.RLIMIT_MEMLOCK, 0)
    _limit(resource.RLIMIT_MSGQUEUE, 0)
    _limit(resource.RLIMIT_SIGPENDING, 256)
    _limit(resource.RLIMIT_STACK, 8 * MEBIBYTE)
    if count_processes:
        _limit(resource.RLIMIT_NPROC, limits.processes)


def _limit(which: int, wanted: int) -> None:
    """Lower a limit; a hard limit that is already lower stays."""
    hard = resource.getrlimit(which)[1]
    value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(which, (value, value))
