"""Listen on a TCP port or a Unix socket."""

import errno
import socket
from pathlib import Path

from turnwise.core.errors import UserError

MAX_PORT = 65_535
BACKLOG = 2048


def check_port(port: int) -> None:
    """Raise UserError for a number that is not a port. Sockets would take some of them modulo 65,536."""
    if not 0 <= port <= MAX_PORT:
        raise UserError(f"Port {port} is not a port: give one from 1024 to {MAX_PORT}, or 0 for any free port.")


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
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UserError(_describe_bind_error(host, port, error)) from None
    return listener


def listener_url(listener: socket.socket) -> str:
    """Return the address without a path."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def listen_on_path(path: Path) -> socket.socket:
    """Return a listening Unix socket to which every user may connect. Raises UserError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UserError(
            f"Cannot listen on {path} ({error.strerror or error}): set TMPDIR to a shorter folder."
        ) from None
    return listener


def _describe_bind_error(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} is in use: choose another, e.g. {port % 65535 + 1}"
    if error.errno == errno.EACCES:
        return f"Port {port} requires root: choose one above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return _describe_wrong_host(host)
    return f"Cannot listen on {host} port {port} ({error.strerror}): choose another host or port"


def _describe_wrong_host(host: str) -> str:
    return f"host {host} is not an address of this machine: give 127.0.0.1, or 0.0.0.0 for all addresses"
