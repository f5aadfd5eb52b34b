"""Messages between host and session: four bytes of length, then JSON. Both sides know a cap; what breaks it ends the
session.

Request: {"id": 3, "code": "..."}. Answer: {"id": 3, "status": "ok", "value": "42", "error": null}.
"""

import array
import json
import socket
import struct
from dataclasses import asdict, dataclass
from typing import Any

from turnwise.sandbox.python_install import PythonInstall
from turnwise.sandbox.types import SandboxLimits, Tier

HEADER = struct.Struct("!I")
SOCKET_GONE = 74
"""The status of a session that ends since its code has closed the socket (EX_IOERR)."""


class FrameError(Exception):
    """The other side of a socket broke the protocol."""


def encode(message: dict[str, Any]) -> bytes:
    body = json.dumps(message).encode("ascii")
    return HEADER.pack(len(body)) + body


def decode(body: bytes) -> dict[str, Any]:
    """Text from inside a jail is hostile: anything but a flat JSON object is refused."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"no JSON: {type(error).__name__}") from None
    if not isinstance(message, dict):
        raise FrameError("no JSON object")
    return message


class FrameBuffer:
    """Collects bytes as they come and gives whole frames."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.bytes = bytearray()

    def feed(self, data: bytes) -> dict[str, Any] | None:
        """The frame, once its last byte is there. Bytes behind it stay in the buffer, for the caller to judge."""
        self.bytes += data
        if len(self.bytes) < HEADER.size:
            return None
        (size,) = HEADER.unpack_from(self.bytes)
        if size > self.cap:
            raise FrameError(f"a frame of {size} bytes; {self.cap} are allowed")
        end = HEADER.size + size
        if len(self.bytes) < end:
            return None
        body = bytes(self.bytes[HEADER.size : end])
        del self.bytes[:end]
        return decode(body)


def read_frame(sock: socket.socket) -> dict[str, Any] | None:
    """Blocking, for the inside, which trusts the host. None: the host has gone."""
    header = _read_exactly(sock, HEADER.size)
    if header is None:
        return None
    body = _read_exactly(sock, HEADER.unpack(header)[0])
    return None if body is None else decode(body)


def _read_exactly(sock: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            return None
        data += piece
    return data


@dataclass(frozen=True, kw_only=True, slots=True)
class ZygoteConfig:
    """Sent as the first message over the control socket."""

    tier: Tier
    limits: SandboxLimits
    prefix: PythonInstall
    host_pid: int
    scratch: str
    """Where sessions get folders of their own, in tiers that have no mounts; empty in the others."""

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "ZygoteConfig":
        fields = json.loads(text)
        prefix = {name: tuple(value) for name, value in fields["prefix"].items()}
        prefix["links"] = tuple((where, what) for where, what in prefix["links"])
        return cls(**{**fields, "limits": SandboxLimits(**fields["limits"]), "prefix": PythonInstall(**prefix)})


CONTROL = 3
"""The descriptor of the control socket in a zygote, and of its own socket in a session."""
MESSAGE_BYTES = 1 << 16


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """One message and the descriptors that came with it; an empty one when the other side has gone."""
    message, rights, _, _ = sock.recvmsg(MESSAGE_BYTES, socket.CMSG_SPACE(4 * 4), socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return message, list(descriptors)
