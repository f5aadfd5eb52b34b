"""Worker process of `math_verifier`: imports math-verify and answers its questions within limits."""

import json
import math
import resource
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

TIME_LIMIT_S = 3
"""CPU seconds per answer. Unlike wall time they do not depend on how busy the machine is."""
MEMORY_LIMIT = 2 * 2**30


class _TimeLimit(BaseException):
    """Raised by the timer. Not an Exception, which SymPy and math-verify catch."""


def _on_timer(signum: int, frame: Any) -> None:
    raise _TimeLimit


def main() -> None:
    """Run the worker: read questions, reply, and exit when the run closes its end."""
    _limit(resource.RLIMIT_AS, MEMORY_LIMIT)
    _limit(resource.RLIMIT_CORE, 0)
    signal.signal(signal.SIGVTALRM, _on_timer)
    with Connection(int(sys.argv[1])) as connection:
        try:
            import math_verify
        except Exception as error:
            connection.send_bytes(json.dumps({"error": str(error)}).encode())
            return
        connection.send_bytes(b"{}")
        while True:
            try:
                question = json.loads(connection.recv_bytes())
            except EOFError:
                return
            connection.send_bytes(json.dumps(_reply(math_verify, **question)).encode())


def _limit(resource_type: int, value: int) -> None:
    _, hard = resource.getrlimit(resource_type)
    resource.setrlimit(resource_type, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _reply(math_verify: Any, answer: str, reference: str) -> dict[str, bool]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    # the kernel ends the process where the timer cannot: inside one long operation on integers
    _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + 2 * TIME_LIMIT_S))
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, TIME_LIMIT_S)
        try:
            return {"equal": _is_equal(math_verify, answer, reference)}
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except _TimeLimit:
        return {"equal": False, "late": True}
    except Exception:  # text of a model: whatever it makes the library raise, it is not the reference
        return {"equal": False}


def _is_equal(math_verify: Any, answer: str, reference: str) -> bool:
    """Compare as verl does, by boxed LaTeX, but to 50 digits like `math_answers`."""
    config = [math_verify.LatexExtractionConfig()]
    parsed = [
        math_verify.parse(rf"\boxed{{{text}}}", config, fallback_mode="no_fallback", parsing_timeout=None)
        for text in (reference, answer)
    ]
    return bool(math_verify.verify(*parsed, float_rounding=50, numeric_precision=50, timeout_seconds=None))
