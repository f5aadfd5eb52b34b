"""What goes wrong around a sandbox, by whose fault it is."""

from turnwise.core.errors import InfrastructureFailure, UserError


class SandboxUnavailable(UserError):
    """This machine gives no isolation: one line that says which probe failed and the remedy."""


class SandboxFailure(InfrastructureFailure):
    """The sandbox itself broke and could not be restarted. Never the agent's fault."""


class JailError(Exception):
    """A step of building a jail was refused by the kernel: which step, and what it said."""


class FrameError(Exception):
    """The other side of a socket broke the protocol."""
