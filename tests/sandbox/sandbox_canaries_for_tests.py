"""Targets of attacks on the sandbox: canaries on the host, checked after each attack."""

import os
import resource
import secrets
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "TW_CANARY_"


@dataclass(frozen=True)
class Attack:
    """Code that tries to break out. It prints BROKEN if it notices success; the canaries show the rest.

    Several codes are calls of one session, in order. `$NAME` is replaced by a property of the canaries.
    """

    name: str
    codes: tuple[str, ...]
    status: tuple[str, ...] = ("ok", "error", "memory", "timeout", "killed")
    """Allowed statuses of the last call."""
    tiers: tuple[str, ...] = ("namespaces", "landlock")
    timeout_s: float | tuple[float, ...] = 60.0
    """Time limit of each call, or of all; short only for a call that reaches it."""
    pause_s: float = 0.0
    """Seconds that the host waits before the last call."""
    prints: str | None = None
    """Text that the last call must print, for attacks that check what is allowed."""


def attack(name: str, *codes: str, **more: Any) -> Attack:
    return Attack(name=name, codes=codes, **more)


class Canaries:
    """The canaries of one attack: a file, a world-writable folder, sockets of all types, a process."""

    def __init__(self) -> None:
        self.secret = MARK + secrets.token_hex(12)
        self.keeper = tempfile.TemporaryDirectory(prefix="canaries-")
        self.folder = Path(self.keeper.name)
        self.folder.chmod(0o777)
        self.file = self.folder / "canary"
        self.file.write_text(self.secret)
        self.file.chmod(0o666)
        self.listeners = self._listeners()
        self.victim = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self.before = self._state()

    def words(self) -> dict[str, str]:
        return {
            "$FILE": str(self.file),
            "$FOLDER": str(self.folder),
            "$PORT": str(self.listeners["tcp"].getsockname()[1]),
            "$UDP": str(self.listeners["udp"].getsockname()[1]),
            "$ABSTRACT": self.abstract,
            "$VICTIM": str(self.victim.pid),
            "$HOST": str(os.getpid()),
            "$SOURCE": str(Path(__file__)),
            "$MARK": MARK[:-1],
        }

    def damage(self) -> str | None:
        """Describe what an attack changed; None if nothing."""
        for name, listener in self.listeners.items():
            if _reached(listener):
                return f"the {name} socket of the host was reached"
        now = self._state()
        changed = [name for name in self.before if now.get(name) != self.before[name]]
        return f"changed on the host: {changed}" if changed else None

    def close(self) -> None:
        for listener in self.listeners.values():
            listener.close()
        self.victim.kill()
        self.victim.wait()
        self.keeper.cleanup()

    def _listeners(self) -> dict[str, socket.socket]:
        self.abstract = f"turnwise-{secrets.token_hex(6)}"
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", 0))
        found = {"tcp": socket.create_server(("127.0.0.1", 0)), "udp": udp}
        for name, kind, address in (
            ("unix", socket.SOCK_STREAM, f"{self.folder}/stream"),
            ("unix datagram", socket.SOCK_DGRAM, f"{self.folder}/datagram"),
            ("abstract", socket.SOCK_STREAM, f"\0{self.abstract}"),
            ("abstract datagram", socket.SOCK_DGRAM, f"\0{self.abstract}-datagram"),
        ):
            listener = socket.socket(socket.AF_UNIX, kind)
            listener.bind(address)
            if kind == socket.SOCK_STREAM:
                listener.listen()
            found[name] = listener
        for name in ("stream", "datagram"):
            (self.folder / name).chmod(0o777)
        for listener in found.values():
            listener.setblocking(False)
        return found

    def _state(self) -> dict[str, Any]:
        """Return what must not change; removed items have no entry."""
        found: dict[str, Any] = {
            "names": sorted(path.name for path in self.folder.iterdir()),
            "folder": (self.folder.stat().st_mode, self.folder.stat().st_uid),
            "victim lives": self.victim.poll() is None,
            "host's limits": resource.getrlimit(resource.RLIMIT_NOFILE),
            "host's priority": os.getpriority(os.PRIO_PROCESS, 0),
            "host's name": socket.gethostname(),
        }
        if self.file.exists():
            found |= _file_state(self.file)
        if found["victim lives"]:
            found |= _process_state(self.victim.pid)
        return found


def _file_state(path: Path) -> dict[str, Any]:
    status = path.stat()
    return {
        "content": path.read_text(),
        "mode": (status.st_mode, status.st_uid, status.st_gid),
        "times and links": (status.st_mtime_ns, status.st_nlink),
        "attributes": os.listxattr(path),
    }


def _process_state(pid: int) -> dict[str, Any]:
    return {
        "victim's state": Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "SRD",
        "victim's priority": os.getpriority(os.PRIO_PROCESS, pid),
        "victim's processors": os.sched_getaffinity(pid),
        "victim's limits": resource.prlimit(pid, resource.RLIMIT_NOFILE),
    }


def _reached(listener: socket.socket) -> bool:
    try:
        if listener.type == socket.SOCK_DGRAM:
            listener.recv(100)
        else:
            listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True
