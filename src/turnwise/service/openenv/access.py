"""Access to a server: for clients with its token, never for web pages of another site."""

import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from turnwise.network.http_headers import bearer_token, host_name, is_local


class AccessGuard:
    """Checks every request and WebSocket before the application sees it."""

    def __init__(self, app: ASGIApp, host: str, token: str | None) -> None:
        self._app, self._host, self._token = app, host, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return
        status, problem = self._check(Headers(scope=scope))
        if not problem:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await JSONResponse({"detail": problem}, status_code=status)(scope, receive, send)
        else:
            headers = [(b"content-type", b"text/plain")]
            await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
            await send({"type": "websocket.http.response.body", "body": problem.encode()})

    def _check(self, headers: Headers) -> tuple[int, str]:
        """Return the status and the reason of a refusal; no reason if the request is allowed."""
        if is_local(self._host) and not is_local(host_name(headers.get("host", ""))):
            return 403, "This server listens on this machine alone: call it localhost."  # else a page could rebind DNS
        origin = headers.get("origin")
        if origin is not None and origin_name(origin) != host_name(headers.get("host", "")):
            return 403, "A web page of another site may not use this server."
        token = bearer_token(headers)
        if self._token is not None and not hmac.compare_digest((token or "").encode(), self._token.encode()):
            return 401, "The server requires its token as Authorization: Bearer TOKEN."
        return 200, ""


def origin_name(origin: str) -> str:
    try:
        return (urlsplit(origin).hostname or "").lower()
    except ValueError:
        return ""
