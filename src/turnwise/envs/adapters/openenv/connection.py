"""Sessions of an OpenEnv server: one WebSocket per episode, opened with backoff and closed in any case.

A socket that is lost in mid-episode is an infrastructure failure: the episode is retried with the same seed.
"""

import asyncio
import json
import logging
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from turnwise.concurrency.loop_clock import pause_current_clock
from turnwise.concurrency.per_loop import PerLoop
from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.envs.adapters.openenv.wire import Result, ServerFull, read_reply, read_result
from turnwise.envs.param_setting import param_setting
from turnwise.network.http_headers import is_local
from turnwise.text.truncation import first_line

log = logging.getLogger(__name__)

CONNECT_S = 10.0
PING_S = 20.0
"""Seconds between pings, which notice that the other machine is gone."""
CLOSE_S = 5.0
"""Seconds in which the server must release a session."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 5.0
"""Bounds of the wait between two attempts to open a session; it doubles."""
TOO_LARGE = 1009
"""Code with which a socket is closed because of a message that is too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server, and the limits of its sessions."""

    url: str
    """http(s)://HOST[:PORT][/PATH] without a slash at the end."""
    token: str | None
    timeout_s: float
    """Time for the answer to one message."""
    wait_s: float
    """Time in which a session must open, not counting the wait for our own sessions to end."""
    max_bytes: int
    """Size of the largest message that the server may send."""

    @property
    def socket_url(self) -> str:
        return f"ws{self.url.removeprefix('http')}/ws"


class Session:
    """One episode on the server. Each request has one reply."""

    def __init__(self, endpoint: Endpoint, socket: ClientConnection) -> None:
        self._endpoint, self._socket = endpoint, socket
        self._requests = 0
        self._inbox = asyncio.Queue[str | bytes | InfrastructureFailure](maxsize=1)
        """The reply, or why there will be none. A server that sends more is not read."""
        self._reader = asyncio.create_task(self._read())

    async def reset(self, arguments: Mapping[str, Any]) -> Result:
        return read_result(await self._ask("reset", arguments, "observation"))

    async def step(self, action: Mapping[str, Any]) -> Result:
        return read_result(await self._ask("step", action, "observation"))

    async def _read(self) -> None:
        """Fill the inbox until the connection ends.

        A task of its own, because a cancelled `recv` in the middle of a fragmented message breaks the connection.
        """
        try:
            while True:
                await self._inbox.put(await self._socket.recv())
        except ConnectionClosed as closed:
            await self._inbox.put(self._describe_close(closed))

    async def _ask(self, kind: str, data: Mapping[str, Any], expected: str) -> Any:
        limit = self._endpoint.timeout_s
        if self._requests and not self._inbox.empty():  # before the first request, a full server says so
            early = self._inbox.get_nowait()
            raise early if isinstance(early, InfrastructureFailure) else self._unasked()
        try:
            async with asyncio.timeout(limit):
                reply = await self._send(json.dumps({"type": kind, "data": data}))
        except TimeoutError as error:
            raise InfrastructureFailure(
                f"{self._endpoint.url} did not answer {kind} within {limit:g} s: raise {param_setting('timeout_s')} if "
                "it needs longer."
            ) from error
        if isinstance(reply, InfrastructureFailure):
            raise reply
        self._requests += 1
        return read_reply(reply, expected)

    async def _send(self, message: str) -> str | bytes | InfrastructureFailure:
        """Send a message and return the reply. A server that is full may have closed before, and said so."""
        try:
            await self._socket.send(message)
        except ConnectionClosed as closed:
            if self._reader.done() and self._inbox.empty():
                return self._describe_close(closed)
        return await self._inbox.get()

    def _unasked(self) -> InfrastructureFailure:
        return InfrastructureFailure(f"{self._endpoint.url} sent a message that nobody asked for.")

    def _describe_close(self, closed: ConnectionClosed) -> InfrastructureFailure:
        url = self._endpoint.url
        if closed.sent is not None and closed.sent.code == TOO_LARGE and not closed.rcvd_then_sent:  # else the server's
            size, setting = self._endpoint.max_bytes >> 20, param_setting("max_message_mb")
            return InfrastructureFailure(f"{url} sent a message of more than {size} MiB: raise {setting}.")
        reason = "" if closed.rcvd is None else f" ({first_line(f'code {closed.rcvd.code} {closed.rcvd.reason}', 200)})"
        return InfrastructureFailure(f"{url} closed the connection after {self._requests} replies{reason}.")

    async def close(self) -> None:
        """Ask the server to release the session, and wait until it has. Never raises: the episode is over."""
        with suppress(ConnectionClosed, TimeoutError, OSError):
            async with asyncio.timeout(CLOSE_S):
                await self._socket.send(json.dumps({"type": "close"}))
                await self._socket.wait_closed()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._socket.close()
        self._socket.transport.abort()  # a peer that ignores the end of the connection keeps nothing of ours
        await self._socket.wait_closed()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


class Slots:
    """Sessions that this process may open on one server: all, until the server reports how many it has."""

    def __init__(self) -> None:
        self.most: int | None = None
        self.open = 0
        self._freed = asyncio.Event()

    async def take(self) -> None:
        while self.most is not None and self.open >= self.most:
            self._freed.clear()
            await self._freed.wait()
        self.open += 1

    def free(self) -> None:
        self.open -= 1
        self._freed.set()


_slots: dict[str, PerLoop[Slots]] = {}
_reported: set[str] = set()
"""Waits that were logged."""


async def open_session(endpoint: Endpoint, reset: Mapping[str, Any]) -> tuple[Session, Result]:
    """Open a session and reset it. Waits for a server that restarts or is full; the episode's clock stops."""
    slots = _slots.setdefault(endpoint.url, PerLoop(Slots)).get()
    with pause_current_clock():
        deadline, wait_s = None, FIRST_WAIT_S
        while True:
            await slots.take()  # waits for an episode of ours to end
            deadline = time.monotonic() + endpoint.wait_s if deadline is None else deadline
            try:
                return await _try_to_open(endpoint, reset, slots)
            except _Unavailable as problem:
                slots.free()
                if time.monotonic() + wait_s > deadline:
                    raise InfrastructureFailure(f"{problem}. Waited {endpoint.wait_s:g} s for it.") from problem
                _report(endpoint, problem)
            except BaseException:
                slots.free()
                raise
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)


class _Unavailable(Exception):
    """The server cannot open a session now."""


async def _try_to_open(endpoint: Endpoint, reset: Mapping[str, Any], slots: Slots) -> tuple[Session, Result]:
    session = _SlotSession(endpoint, await _connect(endpoint), slots)
    try:
        return session, await session.reset(reset)
    except ServerFull as full:
        await Session.close(session)
        slots.most = full.max_sessions or slots.most
        raise _Unavailable(f"{endpoint.url} is full: {full}") from full
    except BaseException:
        await Session.close(session)
        raise


class _SlotSession(Session):
    """A session that frees its slot when it is closed."""

    def __init__(self, endpoint: Endpoint, socket: ClientConnection, slots: Slots) -> None:
        super().__init__(endpoint, socket)
        self._slots: Slots | None = slots

    async def close(self) -> None:
        slots, self._slots = self._slots, None
        try:
            await super().close()
        finally:
            if slots is not None:
                slots.free()


async def _connect(endpoint: Endpoint) -> ClientConnection:
    host = urlsplit(endpoint.url).hostname or ""
    options: dict[str, Any] = {"proxy": None} if is_local(host) else {}
    try:
        return await connect(
            endpoint.socket_url,
            additional_headers={"Authorization": f"Bearer {endpoint.token}"} if endpoint.token else None,
            open_timeout=CONNECT_S,
            ping_interval=PING_S,
            ping_timeout=max(PING_S, endpoint.timeout_s),
            max_size=endpoint.max_bytes,
            compression=None,  # a small message may not become a large one
            **options,
        )
    except InvalidStatus as answer:
        raise _describe_status(endpoint, answer.response.status_code) from answer
    except InvalidURI as error:
        raise UserError(f"{param_setting('server')}: {error}") from error
    except ssl.SSLCertVerificationError as error:
        raise UserError(f"{endpoint.url}: its certificate is not valid: {error.verify_message}") from error
    except (OSError, TimeoutError, InvalidHandshake) as error:
        raise _Unavailable(f"{endpoint.url} does not answer: {first_line(error)}") from error


def _describe_status(endpoint: Endpoint, status: int) -> Exception:
    if status in (401, 403):
        return UserError(f"{endpoint.url} rejects the token: name its variable with {param_setting('token_env')}.")
    if status in (404, 405):
        return UserError(f"{endpoint.socket_url} does not exist: is {endpoint.url} an OpenEnv server?")
    return _Unavailable(f"{endpoint.url} answers with status {status}")


def _report(endpoint: Endpoint, problem: Exception) -> None:
    """Log once per server and cause what episodes wait for."""
    kind = f"{endpoint.url} {isinstance(problem.__cause__, ServerFull)}"
    if kind not in _reported:
        _reported.add(kind)
        log.info("note: episodes wait, up to %g s: %s (reported once)", endpoint.wait_s, problem)
