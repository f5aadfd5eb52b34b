"""What an agent's code gives for some expressions, in a sandbox of its own; what that is worth is decided outside.

Code can forge all that its session says, so the session is told what to calculate and never what should come out.
"""

import ast
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from turnwise.sandbox.types import RunResult

MARK = "tested:"
LONGEST = 4000
"""Characters of one value, written out."""
HARNESS = """
import json as _json

def _plain(value, depth=0):
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        value = value.tolist()
    if depth > 20:
        return value
    if isinstance(value, dict):
        return {{_plain(name, depth + 1): _plain(each, depth + 1) for name, each in value.items()}}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return kind(_plain(each, depth + 1) for each in value)
    return next((kind(value) for kind in (bool, int, float, str) if isinstance(value, kind)), value)

for _case in _json.loads({cases!r}):
    try:
        _given = repr(_plain(eval(_case)))[:{longest}]
    except Exception as _error:
        print({mark!r} + _json.dumps([False, type(_error).__name__ + ": " + str(_error)[:80]]))
    else:
        print({mark!r} + _json.dumps([True, _given]))
"""


class Runs(Protocol):
    """A session of the sandbox."""

    async def run(self, code: str) -> RunResult: ...


@dataclass(frozen=True, slots=True)
class Given:
    """What one expression gave: a value as Python writes it, or what went wrong."""

    fine: bool
    text: str

    def is_value(self, wanted: object, *, same_type: bool, as_json: bool = False) -> bool:
        """Compared as values of Python's own kinds: what a class of the agent's would claim to equal counts nothing.

        `same_type`: 1 is not 1.0, nor True. `as_json`: `wanted` comes from JSON, which knows no tuples.
        """
        if not self.fine:
            return False
        try:
            value = ast.literal_eval(self.text)
            value = plain_json(value) if as_json else value
            return bool(value == wanted) and (not same_type or type(value) is type(wanted))
        except Exception:  # the text is the agent's: whatever it makes this raise, it is no value
            return False


NOTHING = Given(False, "nothing")


async def run_cases(session: Runs, code: str, expressions: Sequence[str]) -> tuple[list[Given], RunResult]:
    """The code, then every expression after it; those that it never came to gave nothing."""
    harness = HARNESS.format(cases=json.dumps(list(expressions)), mark=MARK, longest=LONGEST)
    result = await session.run(code + "\n" + harness)
    return _given(result.output, len(expressions)), result


def _given(output: str, count: int) -> list[Given]:
    """The last lines count: code may print what it likes before."""
    lines = [line.removeprefix(MARK) for line in output.splitlines() if line.startswith(MARK)][-count:]
    found = [_read(line) for line in lines]
    return found + [NOTHING] * (count - len(found))


def _read(line: str) -> Given:
    try:
        fine, text = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return NOTHING
    if not isinstance(text, str) or len(text) > LONGEST:  # not what the harness writes; reading it could take long
        return NOTHING
    return Given(fine is True, text)


def plain_json(value: Any) -> Any:
    """As JSON has it, which knows no tuples."""
    if isinstance(value, list | tuple):
        return [plain_json(each) for each in value]
    if isinstance(value, dict):
        return {str(name): plain_json(each) for name, each in value.items()}
    return value
