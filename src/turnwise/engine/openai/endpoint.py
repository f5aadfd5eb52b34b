"""Where an endpoint is, and the key to it. The key is in no file, no log and no message."""

import email.utils
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult

from turnwise.config import secrets
from turnwise.core.errors import Outage, UserError

KEY_VARIABLE = "OPENAI_API_KEY"
PATH = "/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    url: str
    """As OpenAI's base URL, https://host/v1, or with /chat/completions behind it."""
    model: str
    key: str | None = field(default=None, repr=False)
    key_source: str = ""
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


RETRYABLE = frozenset({408, 409, 425, 429})
PERMANENT = frozenset({501, 505})
"""Server errors that another try does not mend."""
MAX_DETAIL = 200
MAX_WAIT_S = 300.0


class TransientError(Exception):
    """A failure that another try may not meet. `after_s`: how long the endpoint asks to be left alone."""

    def __init__(self, what: str, after_s: float | None = None) -> None:
        super().__init__(what)
        self.after_s = after_s


class ContextLengthError(Exception):
    """The conversation is longer than the model's context."""


def error_for_status(endpoint: Endpoint, status: int, headers: Mapping[str, str], body: bytes) -> Exception:
    """The exception that a status other than 200 stands for."""
    detail = error_detail(endpoint, body)
    where = split_url(endpoint.url).hostname
    if status in RETRYABLE or (status >= 500 and status not in PERMANENT):
        if b"insufficient_quota" in body:
            return Outage(f"{where} says that its quota is used up: pay for more")
        return _passing(f"{where} answers {status}{detail}", headers)
    if status in (400, 413) and _too_long(body):
        return ContextLengthError(f"{where} answers {status}{detail}")
    if status in (401, 403):
        return Outage(f"{where} {_refusal(endpoint, status, detail)}")
    return UserError(f"{where} {_complaint(endpoint, status, headers, detail)}")


def error_detail(endpoint: Endpoint, body: bytes) -> str:
    """What the endpoint says of the error, as " (...)": one short harmless line, without the key."""
    text = body[:20_000].decode(errors="replace")
    try:
        answer = json.loads(text)
        error = answer.get("error", answer) if isinstance(answer, dict) else answer
        found = error.get("message", error.get("detail")) if isinstance(error, dict) else error
        text = found if isinstance(found, str) else text
    except (ValueError, RecursionError):
        pass
    if endpoint.key:
        text = text.replace(endpoint.key, "***")
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return f" ({line[:MAX_DETAIL]}{'...' if len(line) > MAX_DETAIL else ''})" if line else ""


def _passing(what: str, headers: Mapping[str, str]) -> Exception:
    after_s = retry_after(headers.get("retry-after"))
    if after_s is not None and after_s > MAX_WAIT_S:
        return Outage(f"{what} and asks to wait {after_s:.0f} s: try again after that")
    return TransientError(what, after_s)


def retry_after(value: str | None, now: Callable[[], float] = time.time) -> float | None:
    """Seconds that a Retry-After header asks for, in seconds or as a date; None where it says nothing readable."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - now()
        except (ValueError, OverflowError, TypeError):
            return None
    return max(0.0, seconds) if seconds == seconds else None


def _too_long(body: bytes) -> bool:
    return any(word in body for word in (b"context_length_exceeded", b"maximum context length", b"context window"))


def _refusal(endpoint: Endpoint, status: int, detail: str) -> str:
    if endpoint.key and endpoint.key_source:
        return f"refuses the key in {endpoint.key_source} ({status}){detail}: put the right one there"
    given = "refuses the key" if endpoint.key else "wants a key"
    return f"{given} ({status}){detail}: set {KEY_VARIABLE}, or name the variable that holds it with --api-key-env"


def _complaint(endpoint: Endpoint, status: int, headers: Mapping[str, str], detail: str) -> str:
    if status == 404:
        return f'answers 404{detail}: check --model "{endpoint.model}", and that --endpoint ends as in /v1'
    if 300 <= status < 400:
        target = " ".join(headers.get("location", "elsewhere").split())[:MAX_DETAIL]
        return f"answers {status}, a redirect to {target}: give the endpoint's own address"
    return f"refuses the request ({status}){detail}: change what it names, or choose another --model"
