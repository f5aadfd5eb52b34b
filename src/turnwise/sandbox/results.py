"""What one call of a session gives."""

from dataclasses import dataclass
from typing import Literal

Ended = Literal["ok", "error", "timeout", "memory", "killed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """All texts come from hostile code: data for the model, never a verdict (session code can forge its own result)."""

    output: str
    """stdout and stderr in their order, shortened in the middle."""
    value: str | None
    """The repr of a last expression that is not None, shortened."""
    error: str | None
    """A shortened stack trace, or one line that says why the session was ended; None when all went well."""
    ended: Ended
    """timeout, memory: the code met a limit; killed: the session died of something else."""
    seconds: float
