"""Public types of the sandbox: limits, the result of one call, errors."""

from dataclasses import dataclass, fields
from typing import Literal

from turnwise.core.errors import InfrastructureFailure, UserError

MEBIBYTE = 1024 * 1024

Tier = Literal["namespaces", "landlock", "unsafe_subprocess"]
"""Isolation mechanism."""
RunStatus = Literal["ok", "error", "timeout", "memory", "killed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxLimits:
    """Limits of one session. Time and output are limited per call, everything else per session."""

    timeout_s: float = 5.0
    """Wall-clock seconds of one call. Code that runs longer is interrupted, then killed after `grace_s`."""
    memory_mb: int = 1024
    """Memory of all processes of a session in MiB, without the preloaded libraries."""
    output_chars: int = 4000
    """Output, value and error are each truncated in the middle to this many characters."""
    output_mb: int = 4
    """Output of one call in MiB before the call is interrupted."""
    file_mb: int = 32
    """Size of one file in MiB."""
    scratch_mb: int = 64
    """Size of all files of a session in MiB."""
    files: int = 1024
    """Number of files and folders."""
    open_files: int = 128
    processes: int = 32
    """Processes plus threads, including the interpreter."""
    cpu_s: int = 600
    """CPU seconds of one process over the whole session. Backstop for `timeout_s`."""
    code_chars: int = 100_000
    """Longer code is rejected without being run."""
    grace_s: float = 0.5
    """Seconds between the interrupt and the kill."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise UserError(f"Sandbox limit {field.name} is {value}. Set a number above 0.")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """Result of one call.

    Every text comes from untrusted code: pass it to the model as data. Session code can forge its own result, so
    nothing here decides a reward by itself.
    """

    output: str
    """stdout and stderr in the order of writing, truncated in the middle."""
    value: str | None
    """repr of the last expression, truncated; None where there is none or its value is None."""
    error: str | None
    """Short stack trace, or one line that says why the session was killed; None on success."""
    status: RunStatus
    """timeout, memory: the code hit a limit. killed: the session died for another reason."""
    seconds: float


class SandboxUnavailable(UserError):
    """No isolation tier works on this machine. The message names each failed probe and its fix."""


class SandboxFailure(InfrastructureFailure):
    """The sandbox broke and could not be restarted. Never the agent's fault."""
