"""Access control: host names, the access token, and security headers of every response."""

import hmac
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from urllib.parse import parse_qsl, urlencode

from fastapi import Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnwise.network.http_headers import bearer_token, host_name
from turnwise.viewer.json_io import error_response

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
ALLOWED_FETCH_SITES = (None, "same-origin", "none")
"""Values of Sec-Fetch-Site: the viewer's own page, or a typed address. Older browsers send no such header."""
API = "/api/"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPolicy:
    """The address that the server listens on, and the token it requires."""

    host: str = "127.0.0.1"
    port: int = 7860
    token: str | None = None

    @property
    def cookie_name(self) -> str:
        """Contains the port, because browsers share cookies between the ports of a host, and so would two viewers."""
        return f"turnwise-{self.port}"

    def allows_host(self, host: str) -> bool:
        """Return whether a Host header names this server; other names indicate DNS rebinding by a foreign page.

        A server on all addresses cannot know its names; there the token protects it.
        """
        name = host_name(host)
        return name in LOOPBACK_NAMES or name == self.host.lower() or (bool(name) and is_wildcard(self.host))

    def allows_token(self, token: str | None) -> bool:
        return self.token is None or (token is not None and hmac.compare_digest(token.encode(), self.token.encode()))


class AccessMiddleware:
    """Checks every request before any file of a run is read."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy) -> None:
        self._app, self._policy = app, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                set_headers(MutableHeaders(scope=message), scope["path"])
            await send(message)

        await (self._intercept(scope) or self._app)(scope, receive, send_with_headers)

    def _intercept(self, scope: Scope) -> Response | None:
        """Return the response that replaces the requested one; None allows the request."""
        headers, policy = Headers(scope=scope), self._policy
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not policy.allows_host(hosts[0]):
            return error_response(
                403, "The viewer does not serve this host name: open it as localhost, or start it with this host"
            )
        if scope["path"].startswith(API) and headers.get("sec-fetch-site") not in ALLOWED_FETCH_SITES:
            return error_response(403, "The API serves only the viewer's own page: open that page")
        if policy.token is None:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in query if name == "token"]
        if tokens and policy.allows_token(tokens[0]):
            return self._set_cookie_and_redirect(scope["path"], [pair for pair in query if pair[0] != "token"])
        if any(
            policy.allows_token(token) for token in (bearer_token(headers), self._cookie(headers)) if token is not None
        ):
            return None
        return error_response(401, "The viewer requires its token: open the whole address that `turnwise view` printed")

    def _set_cookie_and_redirect(self, path: str, query: list[tuple[str, str]]) -> Response:
        """Store the token in a cookie and redirect to the address without it, so that no history contains it."""
        location = "/" + path.lstrip("/")  # a second slash would make it the address of another server
        response = Response(
            status_code=303, headers={"Location": f"{location}?{urlencode(query)}" if query else location}
        )
        response.set_cookie(
            self._policy.cookie_name, self._policy.token or "", httponly=True, samesite="strict", path="/"
        )
        return response

    def _cookie(self, headers: Headers) -> str | None:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._policy.cookie_name)
        except CookieError:
            return None
        return cookie.value if cookie is not None else None


def set_headers(headers: MutableHeaders, path: str) -> None:
    for name, value in SECURITY_HEADERS.items():
        headers.setdefault(name, value)  # a state's HTML has stricter ones
    headers["Cache-Control"] = "no-cache" if path.startswith("/static/") else "no-store"


def is_wildcard(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return host == ""
