"""Who may look: the right host name, the token where there is one; and what a browser is told with each answer."""

import hmac
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from urllib.parse import parse_qsl, urlencode

from fastapi import Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnwise.viewer.answers import error_answer

HEADERS = {
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
OURS = (None, "same-origin", "none")
"""Values of Sec-Fetch-Site: our own page, or an address that was typed. Older browsers send none."""
API = "/api/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Where the server listens, and what it asks for."""

    host: str = "127.0.0.1"
    port: int = 7860
    token: str | None = None

    @property
    def cookie(self) -> str:
        """With the port: browsers do not tell the ports of a host apart, and two viewers would share one cookie."""
        return f"turnwise-{self.port}"

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server; else a page of some other name was led here to read what we show.

        A server that listens on all addresses cannot know its names; there the token, which no other page has, decides.
        """
        name = host_name(host)
        return name in LOOPBACK_NAMES or name == self.host.lower() or (bool(name) and is_wildcard(self.host))

    def opens(self, given: str | None) -> bool:
        return self.token is None or (given is not None and hmac.compare_digest(given.encode(), self.token.encode()))


class Guard:
    """Stands before all pages and answers. Nothing is read of a run before it lets through."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app, self._door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_told(message: Message) -> None:
            if message["type"] == "http.response.start":
                tell(MutableHeaders(scope=message), scope["path"])
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, send_told)

    def _refusal(self, scope: Scope) -> Response | None:
        """What is answered in place of the page; None: it may be seen."""
        headers, door = Headers(scope=scope), self._door
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not door.knows(hosts[0]):
            return error_answer(
                403, "this server does not go by that name: open it as localhost, or start with --host NAME"
            )
        if scope["path"].startswith(API) and headers.get("sec-fetch-site") not in OURS:
            return error_answer(403, "only this server's own page may ask: open the page itself")
        if door.token is None:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        asked = [value for name, value in query if name == "token"]
        if asked and door.opens(asked[0]):
            return self._welcome(scope["path"], [pair for pair in query if pair[0] != "token"])
        if any(door.opens(given) for given in (bearer(headers), self._cookie(headers)) if given is not None):
            return None
        return error_answer(401, "this viewer wants its token: open the whole address that `turnwise view` printed")

    def _welcome(self, path: str, query: list[tuple[str, str]]) -> Response:
        """Puts the token into a cookie and leads to the address without it: it stays in no history."""
        place = "/" + path.lstrip("/")  # two slashes would name another server
        response = Response(status_code=303, headers={"Location": f"{place}?{urlencode(query)}" if query else place})
        response.set_cookie(self._door.cookie, self._door.token or "", httponly=True, samesite="strict", path="/")
        return response

    def _cookie(self, headers: Headers) -> str | None:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._door.cookie)
        except CookieError:
            return None
        return found.value if found is not None else None


def bearer(headers: Headers) -> str | None:
    kind, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else None


def tell(headers: MutableHeaders, path: str) -> None:
    for name, value in HEADERS.items():
        headers[name] = value
    headers["Cache-Control"] = "no-cache" if path.startswith("/static/") else "no-store"


def host_name(host: str) -> str:
    """Of a Host header, without the port: `[::1]:7860` is ::1."""
    if host.startswith("["):
        name, closed, port = host[1:].partition("]")
        return name.lower() if closed and (not port or port.startswith(":")) else ""
    name, _, port = host.partition(":")
    return name.lower().removesuffix(".") if not port or port.isdigit() else ""


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_wildcard(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return host == ""
