"""Headers of HTTP requests that the servers check: the host name and the bearer token."""

from collections.abc import Mapping
from ipaddress import ip_address


def host_name(host: str) -> str:
    """Return the name in a Host header without the port: `[::1]:7860` gives ::1, a malformed header ""."""
    if host.startswith("["):
        name, closed, port = host[1:].partition("]")
        return name.lower() if closed and (not port or port.startswith(":")) else ""
    name, _, port = host.partition(":")
    return name.lower().removesuffix(".") if not port or port.isdigit() else ""


def is_local(host: str) -> bool:
    """Return whether this is a name or an address of this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def bearer_token(headers: Mapping[str, str]) -> str | None:
    """Return the token of an Authorization header; None if there is none."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else None
