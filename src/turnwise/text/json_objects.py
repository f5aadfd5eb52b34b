"""JSON objects in text that may be anything."""

import json
from typing import Any


def parse_object(text: str | bytes) -> dict[str, Any] | None:
    """Return the JSON object that the text is; None if it is not one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
