"""Argument documentation in docstrings, in Google style (`Args:`) and NumPy style (`Parameters` and dashes).

docstring_parser, which knows more styles, drops a whole section for one malformed line and cannot cut a section out.
"""

import re
from collections.abc import Collection, Mapping

GOOGLE = re.compile(r"^(?:Args|Arguments|Parameters|Params):[ \t]*\n((?:[ \t]+\S.*(?:\n|\Z)|[ \t]*\n)+)", re.MULTILINE)
"""A header, and the indented lines below it."""
NUMPY = re.compile(
    r"^(?:Other )?Parameters[ \t]*\n-{3,}[ \t]*\n(.*?)(?=^\S[^\n]*\n-{3,}[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
"""A header with dashes below it, up to the next one."""
GOOGLE_ARGUMENT = re.compile(r"(?P<names>\w+)[ \t]*(?:\([^)]*\))?[ \t]*:(?P<text>.*)")
NUMPY_ARGUMENT = re.compile(r"(?P<names>\w+(?:[ \t]*,[ \t]*\w+)*)[ \t]*(?::.*)?(?P<text>)")


def split_docstring(text: str, names: Collection[str]) -> tuple[str, Mapping[str, str]]:
    """Return the docstring without its section of arguments, and the description of each argument in `names`.

    `text`: as from `inspect.cleandoc`. A docstring that documents none of `names` is returned as it is.
    """
    for section, argument in ((GOOGLE, GOOGLE_ARGUMENT), (NUMPY, NUMPY_ARGUMENT)):
        if (match := section.search(text)) and (described := _read(match[1], argument, names)):
            rest = f"{text[: match.start()].rstrip()}\n\n{text[match.end() :].strip()}"
            return rest.strip(), described
    return text, {}


def _read(block: str, argument: re.Pattern[str], names: Collection[str]) -> dict[str, str]:
    """An argument starts at the block's own indentation; deeper lines continue its description."""
    lines = [line for line in block.splitlines() if line.strip()]
    indent = len(lines[0]) - len(lines[0].lstrip())
    parts: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines:
        if len(line) - len(line.lstrip()) > indent:
            current.append(line.strip())
        elif match := argument.fullmatch(line.strip()):
            current = [match["text"].strip()]
            parts |= dict.fromkeys(re.split(r"[ \t]*,[ \t]*", match["names"]), current)
    described = {name: " ".join(part for part in text if part) for name, text in parts.items()}
    return {name: text for name, text in described.items() if name in names and text}
