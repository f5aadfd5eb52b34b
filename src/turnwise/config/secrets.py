"""Keys and the addresses they are for. A recipe says where a key is; what it is stands in no recipe and no message."""

import os
import re
from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import SplitResult, parse_qsl, urlsplit

from turnwise.config.options import SECRETS
from turnwise.core.errors import UserError

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""What can name an environment variable."""


def split_url(url: str, *, option: str, example: str, mend: str) -> SplitResult:
    """Its parts. Refuses what is no address, or holds a key, which would be saved; it is not repeated.

    `option`: what gave it; `mend`: how a key is given instead.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not host:
        raise UserError(f"{option} must be a URL such as {example}")
    if parts.username or parts.password:
        raise UserError(f"{option} holds a password, which would be saved: {mend}")
    if any(name.lower().endswith(SECRETS) for name, _ in parse_qsl(parts.query, keep_blank_values=True)):
        raise UserError(f"{option} holds a key behind its ?, which would be saved: {mend}")
    return parts


def read_key(
    parts: SplitResult,
    variable: str | None,
    *,
    default: str,
    option: str,
    environment: Mapping[str, str] = os.environ,
) -> str | None:
    """The key to this address: from the variable that `option` named, or else from `default` where there is one.

    That one is meant for another host, perhaps: it never goes over an unencrypted line unless it is named. What was
    named is not repeated: it may be the key itself.
    """
    if variable is None and parts.scheme == "http" and not is_local(parts.hostname or ""):
        return None
    key = environment.get(variable or default, "").strip()
    if variable is not None and not key:
        raise UserError(f"the variable that {option} names is not set: export it, as export NAME=KEY")
    if not (key.isascii() and key.isprintable()):
        where = f"the variable that {option} names" if variable is not None else default
        raise UserError(f"the key in {where} holds characters that no key has: set it again")
    return key or None


def is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def name_of_variable(value: str) -> str:
    """`value` where it can be one; else a ValueError that does not show it: it is the key itself, perhaps."""
    if not VARIABLE.fullmatch(value):
        raise ValueError("that is no name of a variable: put the key into one, and its name here")
    return value
