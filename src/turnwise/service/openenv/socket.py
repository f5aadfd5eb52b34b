"""The WebSockets of a server: bounded messages, fragments and buffers, and clients that answer pings."""

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from turnwise.service.openenv.wire import MAX_MESSAGE_BYTES

PING_S = 20.0
MAX_FRAGMENTS = 4096
"""Frames of one message. Empty ones count too, which no size limits."""
MAX_UNREAD_BYTES = 1 << 20
"""Pongs and replies that wait for a client that does not read."""
TOO_LARGE = 1009


class BoundedSocket(WebSocketsSansIOProtocol):
    """A socket that is cut where a client could make it grow without end."""

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) < MAX_FRAGMENTS:
            super().handle_cont(event)
        elif self.conn.close_sent is None:
            self.conn.fail(TOO_LARGE, "too many fragments")
            self.handle_parser_exception()

    def handle_ping(self) -> None:
        super().handle_ping()
        if self.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self.transport.abort()


SOCKET_OPTIONS: dict[str, Any] = {
    "ws": BoundedSocket,
    "ws_max_size": MAX_MESSAGE_BYTES,
    "ws_ping_interval": PING_S,
    "ws_ping_timeout": PING_S,
    "ws_per_message_deflate": False,
}
"""Settings of uvicorn. Nothing is compressed: a small message may not become a large one."""
