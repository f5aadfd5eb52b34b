"""Sessions of a server: as many as it may have, each released however its client leaves."""

import asyncio
import time
import uuid
from dataclasses import dataclass, field

from turnwise.service.openenv.episodes import Episodes
from turnwise.service.openenv.served_env import ServedEnv
from turnwise.service.openenv.wire import CAPACITY_REACHED, SESSION_ERROR, ProtocolError

SWEEPS = 4
"""Number of searches for idle sessions within the time that they may be idle."""


@dataclass(slots=True, kw_only=True, eq=False)
class ServerSession:
    """Episodes of one client. Its id is random and never used again."""

    episodes: Episodes
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    attached: bool = False
    """A socket holds it."""
    ends_with_socket: bool = False
    used: float = field(default_factory=time.monotonic)


class Sessions:
    """The open sessions."""

    def __init__(self, served: ServedEnv, *, limit: int, idle_s: float, step_s: float) -> None:
        self._served, self._limit, self._step_s = served, limit, step_s
        self.idle_s = idle_s
        self._open: dict[str, ServerSession] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self) -> ServerSession:
        """Open a session. Raises ProtocolError if there are as many as allowed."""
        if len(self._open) >= self._limit:
            raise ProtocolError(
                CAPACITY_REACHED,
                f"All {self._limit} sessions are in use: close one, or wait.",
                active_sessions=len(self._open),
                max_sessions=self._limit,
            )
        session = ServerSession(episodes=Episodes(self._served, self._step_s))
        self._open[session.id] = session
        return session

    def find(self, session_id: object) -> ServerSession:
        """Return an open session. Raises ProtocolError for one that was closed, or never existed."""
        session = self._open.get(session_id) if isinstance(session_id, str) else None
        if session is None:
            raise ProtocolError(SESSION_ERROR, f"Unknown session_id: {str(session_id)[:64]!r}")
        session.used = time.monotonic()
        return session

    def attach(self, session_id: str) -> ServerSession:
        """Return a session for a socket. Raises ProtocolError if another one has it."""
        session = self.find(session_id)
        if session.attached:
            raise ProtocolError(SESSION_ERROR, f"Session {session_id} already has a WebSocket.")
        session.attached = True
        return session

    async def close(self, session: ServerSession) -> None:
        """Release a session and its episode."""
        if self._open.pop(session.id, None) is not None:
            await session.episodes.close()

    async def close_all(self) -> None:
        for session in list(self._open.values()):
            await self.close(session)

    async def close_idle(self) -> None:
        """Close sessions without a socket that nobody has used for too long. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(self.idle_s / SWEEPS)
            oldest = time.monotonic() - self.idle_s
            for session in list(self._open.values()):
                if not session.attached and session.used < oldest:
                    await self.close(session)
