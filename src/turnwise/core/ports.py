"""Validation of TCP ports."""

from turnwise.core.errors import UserError

MAX_PORT = 65_535


def check_port(port: int) -> None:
    """Raise UserError for a number that is not a port. Sockets would take some of them modulo 65,536."""
    if not 0 <= port <= MAX_PORT:
        raise UserError(f"port {port} is not a port: give one from 1024 to {MAX_PORT}, or 0 for any free port")
