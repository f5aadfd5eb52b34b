"""What one session may use, and the resource limits that the kernel enforces for it."""

from dataclasses import dataclass, fields
from typing import Literal

from turnwise.core.errors import InfrastructureFailure, UserError

MEBIBYTE = 1024 * 1024


Tier = Literal["namespaces", "landlock", "unsafe_subprocess"]


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


RunStatus = Literal["ok", "error", "timeout", "memory", "killed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """All texts come from hostile code: data for the model, never a verdict (session code can forge its own result)."""

    output: str
    """stdout and stderr in their order, shortened in the middle."""
    value: str | None
    """The repr of a last expression that is not None, shortened."""
    error: str | None
    """A shortened stack trace, or one line that says why the session was ended; None when all went well."""
    status: RunStatus
    """timeout, memory: the code met a limit; killed: the session died of something else."""
    seconds: float


class SandboxUnavailable(UserError):
    """This machine gives no isolation: one line that says which probe failed and the remedy."""


class SandboxFailure(InfrastructureFailure):
    """The sandbox itself broke and could not be restarted. Never the agent's fault."""
