"""Where an endpoint is, and the key to it. The key is in no file, no log and no message."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from turnwise.core.errors import UserError

KEY_VARIABLE = "OPENAI_API_KEY"
PATH = "/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    url: str
    """As OpenAI's base URL, https://host/v1, or with /chat/completions behind it."""
    model: str
    key: str | None = field(default=None, repr=False)
    timeout_s: float = 120.0
    """Of one request, from its first byte to the answer's last."""
    retries: int = 6
    """How often a request is sent again after a failure that may pass."""

    @property
    def chat_url(self) -> str:
        parts = split_url(self.url)
        path = parts.path.rstrip("/")
        return parts._replace(path=path if path.endswith(PATH) else path + PATH, fragment="").geturl()


def split_url(url: str) -> SplitResult:
    """Refuses what is no address of an endpoint."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise UserError(f"--endpoint {url}: must be a URL such as http://localhost:8000/v1")
    if parts.username or parts.password:
        raise UserError("--endpoint holds a password, which would be saved: give it as a key, with --api-key-env NAME")
    return parts


def read_key(url: str, variable: str | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The key from the variable that was named, or else from OPENAI_API_KEY where there is one.

    That one is meant for another host, perhaps: it never goes over an unencrypted line unless it is named.
    """
    parts = split_url(url)
    if variable is None and parts.scheme == "http" and not _is_local(parts.hostname or ""):
        return None
    key = environment.get(variable or KEY_VARIABLE, "").strip()
    if variable is not None and not key:
        raise UserError(f"--api-key-env {variable}: that variable is not set: export {variable}=KEY")
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"the key in {variable or KEY_VARIABLE} holds characters that no key has: set it again")
    return key or None


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
