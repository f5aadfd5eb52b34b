"""Model-written code with no isolation at all, for machines that give none and people who accept that. Never chosen
by itself.

The code runs as you: it can read, change and delete what you can, and use the network. Only time, memory and output
are limited.
"""

from turnwise.sandbox.errors import SandboxUnavailable
from turnwise.sandbox.host import Sandbox
from turnwise.sandbox.limits import SandboxLimits
from turnwise.sandbox.prefix import DEFAULT_PACKAGES
from turnwise.sandbox.probe import missing_ground
from turnwise.sandbox.zygote_process import ZygoteFailed


async def start_unsafe_subprocess(
    limits: SandboxLimits | None = None, *, packages: tuple[str, ...] = DEFAULT_PACKAGES
) -> Sandbox:
    """The interface of a sandbox without its walls."""
    if (problem := missing_ground()) is not None:
        raise SandboxUnavailable(problem)
    try:
        return await Sandbox.open("unsafe_subprocess", limits or SandboxLimits(), packages)
    except ZygoteFailed as error:
        raise SandboxUnavailable(f"a Python process could not be started: {error}") from None
