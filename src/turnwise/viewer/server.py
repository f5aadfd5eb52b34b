"""Start the web server, print its address, and serve until Ctrl-C."""

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
from turnwise.core.ports import check_port
from turnwise.viewer.access import AccessPolicy, is_loopback, is_wildcard
from turnwise.viewer.api import make_app

TOKEN_CHARACTERS = frozenset(ascii_letters + digits + "-_.~")
MIN_TOKEN_LENGTH = 8


def serve(
    folder: Path, *, host: str, port: int, token: str | None, open_browser: bool, write: Callable[[str], None]
) -> None:
    """Serve `folder` until Ctrl-C. An address that others can reach requires a token, created if none is given."""
    token = resolve_token(host, token)
    listener = listen(host, port)
    policy = AccessPolicy(host=host, port=listener.getsockname()[1], token=token)
    with listener:
        app = make_app(folder, policy)
        address = page_address(policy)
        write(f"viewing {folder} at {address}  (Ctrl-C to stop)")
        if open_browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2, ws="none"
        )
        with suppress(KeyboardInterrupt):  # Ctrl-C is the normal way to stop
            uvicorn.Server(config).run(sockets=[listener])


def resolve_token(host: str, token: str | None) -> str | None:
    """Return the token to require: a new one if others can reach `host` and none is given; None on this machine."""
    if token is None:
        return None if is_loopback(host) else secrets.token_urlsafe(16)
    if len(token) < MIN_TOKEN_LENGTH or not set(token) <= TOKEN_CHARACTERS:
        raise UserError(f"token must have {MIN_TOKEN_LENGTH} or more letters, digits or -_.~: change it or remove it")
    return token


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises UserError for an unusable host or port."""
    check_port(port)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise UserError(_describe_wrong_host(host)) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UserError(_describe_bind_error(host, port, error)) from None
    return listener


def _describe_bind_error(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} is in use, perhaps by another viewer: choose another, e.g. {port % 65535 + 1}"
    if error.errno == errno.EACCES:
        return f"Port {port} requires root: choose one above 1023, e.g. 7860"
    if error.errno == errno.EADDRNOTAVAIL:
        return _describe_wrong_host(host)
    return f"Cannot listen on {host} port {port} ({error.strerror}): choose another host or port"


def _describe_wrong_host(host: str) -> str:
    return f"host {host} is not an address of this machine: give 127.0.0.1, or 0.0.0.0 for all addresses"


def page_address(policy: AccessPolicy) -> str:
    """Return the address to open, including the token. For a server on all addresses it contains the machine's name."""
    name = socket.gethostname() if is_wildcard(policy.host) else policy.host
    host = f"[{name}]" if ":" in name else name
    return f"http://{host}:{policy.port}/" + (f"?token={policy.token}" if policy.token else "")
