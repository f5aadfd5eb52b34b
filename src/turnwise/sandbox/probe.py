"""Find out which isolation tier works on this machine: each is attacked once before it is used."""

# Paths here are plain strings, as system calls take them.
# ruff: noqa: PTH101, PTH110, PTH118, PTH123

import os
import platform
import secrets
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable

from turnwise.sandbox.syscalls import MACHINES, is_supported_machine
from turnwise.sandbox.types import RunResult, Tier

TIERS: tuple[Tier, ...] = ("namespaces", "landlock")
"""Best first."""

FIXES: dict[Tier, str] = {
    "namespaces": "allow user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0, or "
    "kernel.unprivileged_userns_clone=1 and user.max_user_namespaces above 0; in a container, a seccomp profile that "
    "allows unshare and mount)",
    "landlock": "use Linux 5.13 or newer with landlock in its lsm= list; in a container, a seccomp profile that "
    "allows landlock",
}

ATTACK = """
import os, socket
canary, port, host = {canary!r}, {port}, {host}
broken = []
def attempt(name, action):
    try:
        action()
    except OSError:
        return
    broken.append(name)
attempt("read a file of the host", lambda: open(canary).read())
attempt("write a file of the host", lambda: open(canary, "a").write("x"))
attempt("list a folder of the host", lambda: os.listdir(os.path.dirname(canary) + "/."))
attempt("open a connection", lambda: socket.create_connection(("127.0.0.1", port), 1))
attempt("signal the host", lambda: os.kill(host, 0))
attempt("remove a file of the host", lambda: os.unlink(canary))
open("scratch", "w").write("works")
print(open("scratch").read() == "works", broken)
"""


def unsupported_reason() -> str | None:
    """Return why no tier can work on this machine; None if one may."""
    if sys.platform != "linux":
        return f"the sandbox needs Linux; this is {platform.system() or sys.platform}"
    if not is_supported_machine():
        return f"the sandbox supports {' and '.join(MACHINES)}; this machine is {platform.machine()}"
    return None


async def self_test(run: Callable[[str], Awaitable[RunResult]]) -> str | None:
    """Attack the host from inside a session; return what succeeded, None if nothing did."""
    secret = secrets.token_hex(16)
    with (
        tempfile.TemporaryDirectory(prefix="turnwise-probe-") as folder,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        canary = os.path.join(folder, "canary")
        with open(canary, "w", encoding="utf-8") as file:
            file.write(secret)
        os.chmod(folder, 0o755)
        os.chmod(canary, 0o666)
        server.setblocking(False)
        code = ATTACK.format(canary=canary, port=server.getsockname()[1], host=os.getpid())
        result = await run(code)
        if result.status != "ok":
            return f"the first call ended with status {result.status}: {result.error}"
        if result.output.strip() != "True []":
            return f"session code could {result.output.strip()}"
        return _find_damage(canary, secret, server)


def _find_damage(canary: str, secret: str, server: socket.socket) -> str | None:
    """Check the targets of the attack from the host."""
    if not os.path.exists(canary):
        return "session code removed a file of the host"
    with open(canary, encoding="utf-8") as file:
        if file.read() != secret:
            return "session code changed a file of the host"
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return None
    return "session code reached the host's network"
