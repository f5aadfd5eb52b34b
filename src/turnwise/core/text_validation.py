"""Characters that JSON can spell and that files, servers, interpreters and databases do not take."""

import re
from collections.abc import Iterator
from typing import Any

INVALID_CHARACTER = re.compile("[\0\ud800-\udfff]")


def find_invalid_character(value: Any) -> str | None:
    """What is broken in a text, or in one of those in a value of JSON, in a few words; None: all are whole."""
    found = next(filter(None, map(INVALID_CHARACTER.search, _texts(value))), None)
    if found is None:
        return None
    return "a null character" if found[0] == "\0" else "half a character"


def _texts(value: Any) -> Iterator[str]:
    """Keys too. A list of what is left, since values may be nested more deeply than calls can be."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            left += [*each, *each.values()]
        elif isinstance(each, list):
            left += each
