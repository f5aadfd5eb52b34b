"""A query out of what a model wrote around it."""

import re

BLOCK = re.compile(
    r"```(?:(?!select\b|with\b|values\b)[\w+-]*[ \t]*\n|(?:sqlite|sql)\b)?(.*?)```", re.DOTALL | re.IGNORECASE
)
"""With the name of a language, or with none."""


def query_of(answer: str) -> str:
    """The last fenced block, or all of it where there is none."""
    blocks = BLOCK.findall(answer)
    return str(blocks[-1] if blocks else answer).strip().removesuffix(";")
