"""Listens, says where, and serves until Ctrl-C."""

import errno
import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from string import ascii_letters, digits

import uvicorn

from turnwise.core.errors import UserError
from turnwise.viewer.access import Door, is_loopback, is_wildcard
from turnwise.viewer.app import make_app

SAFE = frozenset(ascii_letters + digits + "-_.~")
SHORTEST_TOKEN = 8


def serve(
    folder: Path, *, host: str, port: int, token: str | None, open_browser: bool, say: Callable[[str], None]
) -> None:
    """Shows `folder` at a port. Where others can reach it, only to who has the token; one is made if none is given."""
    token = checked_token(host, token)
    listening = listen(host, port)
    door = Door(host=host, port=listening.getsockname()[1], token=token)
    with listening:
        app = make_app(folder, door)
        address = address_of(door)
        say(f"viewing {folder} at {address}  (Ctrl-C ends)")
        if open_browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        settings = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2, ws="none"
        )
        with suppress(KeyboardInterrupt):  # the way to end it
            uvicorn.Server(settings).run(sockets=[listening])


def checked_token(host: str, token: str | None) -> str | None:
    """The token that is asked for; None on this machine alone, where none was wished."""
    if token is None:
        return None if is_loopback(host) else secrets.token_urlsafe(16)
    if len(token) < SHORTEST_TOKEN or not set(token) <= SAFE:
        raise UserError(
            f"--token must be {SHORTEST_TOKEN} or more letters, digits or -_.~: give another, or leave it out"
        )
    return token


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; what is wrong with host or port is one line."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port} is no port: give one from 1024 to 65535, or 0 for any that is free")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise UserError(f"--host {host} is no address of this machine: give 127.0.0.1, or 0.0.0.0 for all") from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise UserError(bind_problem(host, port, error)) from None
    return listening


def bind_problem(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is taken, perhaps by another viewer: choose another, as --port {port % 65535 + 1}"
    if error.errno == errno.EACCES:
        return f"port {port} is not for ordinary users: choose one above 1023, as --port 7860"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is no address of this machine: give 127.0.0.1, or 0.0.0.0 for all"
    return f"cannot listen on {host} port {port} ({error.strerror}): choose another --host or --port"


def address_of(door: Door) -> str:
    """What to open, the token included. A server on all addresses is named by this machine's name."""
    name = socket.gethostname() if is_wildcard(door.host) else door.host
    shown = f"[{name}]" if ":" in name else name
    return f"http://{shown}:{door.port}/" + (f"?token={door.token}" if door.token else "")
