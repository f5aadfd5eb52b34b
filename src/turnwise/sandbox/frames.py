"""Messages between host and session: four bytes of length, then JSON. Both sides know a cap; what breaks it ends the
session.

Request: {"id": 3, "code": "..."}. Answer: {"id": 3, "ended": "ok", "value": "42", "error": null}.
"""

import json
import socket
import struct
from typing import Any

from turnwise.sandbox.errors import FrameError

HEADER = struct.Struct("!I")
SOCKET_GONE = 74
"""The status of a session that ends since its code has closed the socket (EX_IOERR)."""


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
