"""Errors of the Python API: they name keywords (`train__steps=`) where the command line's name options."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from turnwise.config.keys import all_keys
from turnwise.core.errors import UserError

COMMAND = r"`[^`]*`|\b(?:turnwise|vllm) [a-z]+ .*$"
"""Commands, whose options stay as they are."""
OPTION = r"(?<![\w-])--([a-z][\w.]*\w)(?![\w-])(?: (\S+)(?=:))?"
"""An option; with its value in `--tries 0: must be 1 or more`."""
OTHER_NAMES = {"from": "config=tw.load_run(...).config, from", "resume": "tw.load_run(...).resume()"}
"""Options whose counterpart is not a keyword."""


@contextmanager
def keyword_errors() -> Iterator[None]:
    """Reword the options in a UserError as keywords."""
    try:
        yield
    except UserError as error:
        error.args = (name_keywords(str(error)),)
        raise


def name_keywords(text: str) -> str:
    """Return the text with `--train.steps` as `train__steps=`, and all settings so if it is about an unknown key."""

    def reword(found: re.Match[str]) -> str:
        return found[0] if found[1] is None else _keyword(found[1]) + (found[2] or "")

    reworded = re.sub(f"{COMMAND}|{OPTION}", reword, text)
    if not text.startswith("unknown key "):
        return reworded
    dotted = "|".join(re.escape(name) for name in sorted(all_keys(), key=len, reverse=True) if "." in name)
    return re.sub(rf'"?\b({dotted})\b"?', lambda found: _keyword(found[1]), reworded)


def _keyword(option: str) -> str:
    return OTHER_NAMES.get(option) or f"{option.replace('.', '__')}="
