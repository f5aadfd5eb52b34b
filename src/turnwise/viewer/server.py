"""Start the web server, print its address, and serve until Ctrl-C."""

import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from string import ascii_letters, digits

import uvicorn

from turnwise.core.errors import UserError
from turnwise.network.http_headers import is_local
from turnwise.network.ports import listen
from turnwise.viewer.access import AccessPolicy, is_wildcard
from turnwise.viewer.api import make_app
from turnwise.viewer.extension import Extension

TOKEN_CHARACTERS = frozenset(ascii_letters + digits + "-_.~")
MIN_TOKEN_LENGTH = 8


def serve(
    folder: Path,
    *,
    host: str,
    port: int,
    token: str | None,
    open_browser: bool,
    write: Callable[[str], None],
    extension: Extension | None = None,
) -> None:
    """Serve `folder` until Ctrl-C. An address that others can reach requires a token, created if none is given.

    An extension always requires one.
    """
    token = resolve_token(host, token, always=extension is not None)
    listener = listen(host, port)
    policy = AccessPolicy(host=host, port=listener.getsockname()[1], token=token)
    with listener:
        app = make_app(folder, policy, extension)
        address = page_address(policy)
        write(f"viewing {folder} at {address}  (Ctrl-C to stop)")
        if open_browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2, ws="none"
        )
        with suppress(KeyboardInterrupt):  # Ctrl-C is the normal way to stop
            uvicorn.Server(config).run(sockets=[listener])


def resolve_token(host: str, token: str | None, *, always: bool = False) -> str | None:
    """Return the token to require: a new one if others can reach `host` and none is given; None on this machine.

    `always`: also on this machine.
    """
    if token is None:
        return None if is_local(host) and not always else secrets.token_urlsafe(16)
    if len(token) < MIN_TOKEN_LENGTH or not set(token) <= TOKEN_CHARACTERS:
        raise UserError(f"token must have {MIN_TOKEN_LENGTH} or more letters, digits or -_.~: change it or remove it.")
    return token


def page_address(policy: AccessPolicy) -> str:
    """Return the address to open, including the token. For a server on all addresses it contains the machine's name."""
    name = socket.gethostname() if is_wildcard(policy.host) else policy.host
    host = f"[{name}]" if ":" in name else name
    return f"http://{host}:{policy.port}/" + (f"?token={policy.token}" if policy.token else "")
