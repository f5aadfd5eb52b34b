"""The address of a chat endpoint, and the errors that its requests end with.

Errors carry data and say what happened. How to fix it is up to the caller, who knows which option or setting to change.
"""

import email.utils
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from turnwise.core.errors import Outage, UserError

KEY_VARIABLE = "OPENAI_API_KEY"
"""Environment variable that holds the key unless another one is named."""
EXAMPLE_URL = "http://localhost:8000/v1"
PATH = "/chat/completions"
RETRYABLE = frozenset({408, 409, 425, 429})
NOT_RETRYABLE = frozenset({501, 505})
"""Server errors that a retry does not fix."""
MAX_DETAIL = 200
"""Characters of the endpoint's own error message that are quoted."""
MAX_WAIT_S = 300.0
"""Longest Retry-After that is waited for."""

Reason = Literal["unreachable", "unauthorized", "quota", "wait", "not_found", "redirect", "rejected"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    url: str
    """OpenAI's base URL form, https://host/v1, or with /chat/completions appended."""
    model: str
    key: str | None = field(default=None, repr=False)
    timeout_s: float = 120.0
    """Time limit of one request, up to the last byte of the answer."""
    retries: int = 6
    """Retries after transient failures."""

    @property
    def chat_url(self) -> str:
        parts = urlsplit(self.url)
        path = parts.path.rstrip("/")
        return parts._replace(path=path if path.endswith(PATH) else path + PATH, fragment="").geturl()

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""


class TransientError(Exception):
    """A failure that a retry may not meet. `after_s`: how long the endpoint asks to wait."""

    def __init__(self, what: str, after_s: float | None = None) -> None:
        super().__init__(what)
        self.after_s = after_s


class ContextLengthError(Exception):
    """The conversation is longer than the model's context."""


class EndpointError(UserError):
    """A request that fails however often it is sent."""

    def __init__(self, what: str, *, endpoint: Endpoint, reason: Reason, status: int | None = None) -> None:
        super().__init__(what)
        self.endpoint, self.reason, self.status = endpoint, reason, status

    def with_advice(self, advice: str, prefix: str = "") -> UserError:
        """Return the error that a caller's users see."""
        return UserError(f"{prefix}{self}: {advice}")


class EndpointOutage(EndpointError, Outage):
    """An EndpointError that no setting of the run causes: once it is fixed, the run can continue."""

    def with_advice(self, advice: str, prefix: str = "") -> UserError:
        return Outage(f"{prefix}{self}: {advice}")


def error_for_status(endpoint: Endpoint, status: int, headers: Mapping[str, str], body: bytes) -> Exception:
    """Return the exception for a response with a status other than 200."""
    answered = f"{endpoint.host} answered {status}{error_detail(endpoint, body)}"
    if status in RETRYABLE or (status >= 500 and status not in NOT_RETRYABLE):
        return _retryable(endpoint, status, answered, headers, body)
    if status in (400, 413) and _is_too_long(body):
        return ContextLengthError(answered)
    if status in (401, 403):
        problem = "refused the key" if endpoint.key else "requires a key"
        what = f"{endpoint.host} {problem} ({status}){error_detail(endpoint, body)}"
        return EndpointOutage(what, endpoint=endpoint, reason="unauthorized", status=status)
    if status == 404:
        return EndpointError(answered, endpoint=endpoint, reason="not_found", status=status)
    if 300 <= status < 400:
        target = " ".join(headers.get("location", "another address").split())[:MAX_DETAIL]
        what = f"{endpoint.host} answered {status}, a redirect to {target}"
        return EndpointError(what, endpoint=endpoint, reason="redirect", status=status)
    what = f"{endpoint.host} rejected the request ({status}){error_detail(endpoint, body)}"
    return EndpointError(what, endpoint=endpoint, reason="rejected", status=status)


def error_detail(endpoint: Endpoint, body: bytes) -> str:
    """Return the endpoint's own error message as " (...)": one short printable line without the key."""
    text = body[:20_000].decode(errors="replace")
    try:
        answer = json.loads(text)
        error = answer.get("error", answer) if isinstance(answer, dict) else answer
        detail = error.get("message", error.get("detail")) if isinstance(error, dict) else error
        text = detail if isinstance(detail, str) else text
    except (ValueError, RecursionError):
        pass
    if endpoint.key:
        text = text.replace(endpoint.key, "***")
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return f" ({line[:MAX_DETAIL]}{'...' if len(line) > MAX_DETAIL else ''})" if line else ""


def retry_after(value: str | None, now: Callable[[], float] = time.time) -> float | None:
    """Return the seconds in a Retry-After header, a number or a date; None if it cannot be read."""
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


def _retryable(endpoint: Endpoint, status: int, answered: str, headers: Mapping[str, str], body: bytes) -> Exception:
    if b"insufficient_quota" in body:
        what = f"the quota at {endpoint.host} is used up"
        return EndpointOutage(what, endpoint=endpoint, reason="quota", status=status)
    after_s = retry_after(headers.get("retry-after"))
    if after_s is not None and after_s > MAX_WAIT_S:
        what = f"{answered} and asks to wait {after_s:.0f} s"
        return EndpointOutage(what, endpoint=endpoint, reason="wait", status=status)
    return TransientError(answered, after_s)


def _is_too_long(body: bytes) -> bool:
    return any(words in body for words in (b"context_length_exceeded", b"maximum context length", b"context window"))
