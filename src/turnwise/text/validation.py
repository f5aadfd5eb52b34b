"""Characters that JSON can encode but files, servers, interpreters and databases reject."""

import re
from collections.abc import Iterator
from typing import Any

INVALID_CHARACTER = re.compile("[\0\ud800-\udfff]")


def find_invalid_character(value: Any) -> str | None:
    """Describe the first invalid character in the texts of a JSON value; None if there is none."""
    match = next(filter(None, map(INVALID_CHARACTER.search, _texts(value))), None)
    if match is None:
        return None
    return "a null character" if match[0] == "\0" else "an unpaired surrogate"


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts, including keys. Iterative, because values may be nested beyond the recursion limit."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            stack += [*item, *item.values()]
        elif isinstance(item, list):
            stack += item
