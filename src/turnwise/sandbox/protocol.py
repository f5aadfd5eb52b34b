"""Messages between the host, the zygote and the sessions.

Host and session exchange frames over a stream socket: four bytes of length, then a JSON object. Both sides cap the
size; a frame above it ends the session.

    request  {"id": 3, "code": "..."}
    answer   {"id": 3, "status": "ok", "value": "42", "error": null}

Host and zygote exchange JSON objects over a SOCK_SEQPACKET socket, which preserves message boundaries and passes
file descriptors.

    host -> zygote   ZygoteConfig, once; then {"start": 7, "seed": 3} with two descriptors: socket and output
    zygote -> host   {"ready": {...}} or {"failed": "..."}, once; {"started": 7, "scratch": "..."} with a pidfd;
                     {"exited": 7, "exit_code": -9}
"""

import array
import json
import socket
import struct
from dataclasses import asdict, dataclass
from typing import Any

from turnwise.sandbox.python_install import AgentAccess, PythonInstall
from turnwise.sandbox.types import SandboxLimits, Tier

HEADER = struct.Struct("!I")
SOCKET_CLOSED = 74
"""Exit code of a session whose code closed its socket (EX_IOERR)."""
CONTROL = 3
"""Descriptor of the control socket in the zygote, and of the session's own socket in a session."""
MESSAGE_BYTES = 1 << 16


class FrameError(Exception):
    """The peer violated the protocol."""


def encode(message: dict[str, Any]) -> bytes:
    body = json.dumps(message).encode("ascii")
    return HEADER.pack(len(body)) + body


def decode(body: bytes) -> dict[str, Any]:
    """Parse a frame's body. Raises FrameError unless it is a JSON object: the sender is untrusted."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"invalid JSON: {type(error).__name__}") from None
    if not isinstance(message, dict):
        raise FrameError("not a JSON object")
    return message


class FrameBuffer:
    """Reassembles frames from chunks of bytes."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.bytes = bytearray()

    def feed(self, data: bytes) -> dict[str, Any] | None:
        """Add bytes; return the first frame once it is complete. Later bytes stay in `bytes` for the caller."""
        self.bytes += data
        if len(self.bytes) < HEADER.size:
            return None
        (size,) = HEADER.unpack_from(self.bytes)
        if size > self.cap:
            raise FrameError(f"a frame of {size} bytes exceeds the limit of {self.cap}")
        end = HEADER.size + size
        if len(self.bytes) < end:
            return None
        body = bytes(self.bytes[HEADER.size : end])
        del self.bytes[:end]
        return decode(body)


def read_frame(sock: socket.socket) -> dict[str, Any] | None:
    """Read one frame from the host, which the session trusts. Blocks; None once the host closed the socket."""
    header = _read_exactly(sock, HEADER.size)
    if header is None:
        return None
    body = _read_exactly(sock, HEADER.unpack(header)[0])
    return None if body is None else decode(body)


def _read_exactly(sock: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        chunk = sock.recv(count - len(data))
        if not chunk:
            return None
        data += chunk
    return data


@dataclass(frozen=True, kw_only=True, slots=True)
class ZygoteConfig:
    """First message over the control socket."""

    tier: Tier
    limits: SandboxLimits
    python: PythonInstall
    host_pid: int
    scratch: str
    """Base folder of the sessions' scratch folders, in tiers without mounts; empty in the others."""

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "ZygoteConfig":
        fields = json.loads(text)
        python: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in fields["python"].items()
        }
        python["links"] = tuple((path, target) for path, target in python["links"])
        if (agent := python["agent"]) is not None:
            python["agent"] = AgentAccess(folders=tuple(agent["folders"]), sockets=agent["sockets"])
        return cls(**{**fields, "limits": SandboxLimits(**fields["limits"]), "python": PythonInstall(**python)})


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Receive one message and its file descriptors; an empty message once the peer closed the socket."""
    message, ancillary, _, _ = sock.recvmsg(MESSAGE_BYTES, socket.CMSG_SPACE(4 * 4), socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return message, list(descriptors)


def send(sock: socket.socket, message: dict[str, Any], *descriptors: int) -> None:
    """Send one message from the zygote, with file descriptors."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sock.sendmsg([json.dumps(message).encode()], ancillary)
