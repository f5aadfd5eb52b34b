"""Where an endpoint is, and the key to it. The key is in no file, no log and no message."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult

from turnwise.config import secrets

KEY_VARIABLE = "OPENAI_API_KEY"
PATH = "/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    url: str
    """As OpenAI's base URL, https://host/v1, or with /chat/completions behind it."""
    model: str
    key: str | None = field(default=None, repr=False)
    key_from: str = ""
    """What the user named it by, for an endpoint that refuses it; empty: it was looked for in OPENAI_API_KEY."""
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
    """Refuses what is no address of an endpoint, or holds a key."""
    mend = "give it as a key, with --api-key-env NAME"
    return secrets.split_url(url, option="--endpoint", example="http://localhost:8000/v1", mend=mend)


def read_key(url: str, variable: str | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The key from the variable that was named, or else from OPENAI_API_KEY where there is one."""
    given = {"default": KEY_VARIABLE, "option": "--api-key-env"}
    return secrets.read_key(split_url(url), variable, **given, environment=environment)
