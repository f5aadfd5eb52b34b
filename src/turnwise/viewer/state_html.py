"""States that an environment rendered as HTML, for a sandboxed frame of the page.

The HTML is untrusted. Its response is a document of an origin of its own, without scripts, forms and requests, whatever
frame or tab shows it.
"""

from collections.abc import Mapping
from typing import Any

from fastapi import Response

from turnwise.viewer.viewed_folder import FileNotServed

FRAME_HEADERS = {
    "Content-Security-Policy": (
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'self'"
    ),
    "X-Frame-Options": "SAMEORIGIN",
    "X-DNS-Prefetch-Control": "off",
}


def respond_with_html(row: Mapping[str, Any], turn: int) -> Response:
    """Return the state after a turn of a trajectory, or that at the start for -1. Raises FileNotServed without HTML."""
    turns = row.get("turns")
    holder = row.get("start") if turn < 0 else _at(turns, turn).get("picture")
    html = holder.get("html") if isinstance(holder, dict) else None
    if not isinstance(html, str) or not html:
        raise FileNotServed("This state was not rendered as HTML: reload the page.")
    return Response(html.encode("utf-8", "replace"), media_type="text/html", headers=FRAME_HEADERS)


def _at(turns: Any, index: int) -> Mapping[str, Any]:
    turn = turns[index] if isinstance(turns, list) and index < len(turns) else None
    return turn if isinstance(turn, dict) else {}
