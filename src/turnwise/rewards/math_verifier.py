"""math-verify (https://github.com/huggingface/Math-Verify) in a worker process with limits.

It compares answers that `math_answers` cannot parse: sets, intervals, matrices, equations, functions, units. It is the
optional extra `math`; TRL and verl use it too.

It runs in a process of its own because no answer may stop a run: SymPy evaluates `10^{10^{10}}` in one uninterruptible
call, and its own time limit needs SIGALRM in the main thread. Left to itself it also accepts answers that are wrong:
it rounds decimals to six places, adds numbers that are side by side (7 8 is 15), reads words as products (cat is act)
and ignores units (5 km is 5 cm) and number bases. `prepare` and `math_units` rule those out before it is asked.
"""

import atexit
import json
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from asyncio import get_running_loop
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

from turnwise.concurrency.bounded_cache import BoundedCache, count_values
from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.rewards.math_text import EXPONENT, SHORT_FRACTION, plain, read_number
from turnwise.rewards.math_units import ENVIRONMENT, conflicts

log = logging.getLogger(__name__)

INSTALL = "pip install 'turnwise[math]'"
WORKER = "from turnwise.rewards.math_verify_worker import main; main()"
WALL_LIMIT_S = 60.0
"""Seconds after which a worker that does not reply is killed, whatever it does."""
START_LIMIT_S = 180.0
"""Seconds for the import of SymPy."""
MAX_CHARS = 1000
"""Length of an answer, at most."""
CACHE_SIZE = 4096
"""Verdicts that are kept: groups repeat answers, and a slow one is not paid for twice."""
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH")
"""Environment variables of the worker. It needs no keys."""

SPACE = re.compile(r"(?<!\\)\\(?:[,;: ]|q?quad\b)|~")
SYMBOLS = {
    "π": r"\pi ",
    "∞": r"\infty ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "∪": r"\cup ",
    "×": r"\times ",
    "·": r"\cdot ",
    "−": "-",
    "–": "-",
    "{,}": ",",
    r"\!": "",
}
ROOT = re.compile(r"(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)")
FUNCTION = re.compile(r"(?<![A-Za-z\\])(arc(?:sin|cos|tan)|sin|cos|tan|cot|sec|csc|log|ln|exp|pi)(?![A-Za-z])")
DECIMAL = re.compile(rf"(?<![0-9.])(?:[0-9]*\.[0-9]+{EXPONENT}?|[0-9]+{EXPONENT})(?![0-9.])")
COMMAND = re.compile(r"\\([A-Za-z]+)(?:\s*\[[^\[\]]*\])?(?:\s*\{[^{}]*\})*|[\^_]\s*\{[^{}]*\}")
VISIBLE = re.compile(r"[dt]?frac|sqrt|binom|cdot|times|div|pm|mp|cup|cap|setminus|[lg]eq?|[lg]t|neq?|in|pi")
"""Commands that keep two numbers apart."""
PLAIN_SET = re.compile(r"^\{([^{}]*)\}$")
SIDE_BY_SIDE = re.compile(r"[0-9.]\s+[0-9.]")
STRAY = re.compile(r"[.{}]")
"""A point that is not that of a plain decimal, or a brace that belongs to no command."""


def prepare(text: str) -> str | None:
    """Return the LaTeX that math-verify compares exactly, or None if it would misread it.

    Decimals become fractions, since it rounds them.
    """
    if len(text) > MAX_CHARS:
        return None
    text = PLAIN_SET.sub(r"\\{\1\\}", SPACE.sub(" ", plain(text)))
    for symbol, latex in SYMBOLS.items():
        text = text.replace(symbol, latex)
    text = SHORT_FRACTION.sub(r"\\frac{\1}{\2}", FUNCTION.sub(r"\\\1 ", ROOT.sub(r"\\sqrt{\1}", text)))
    if SIDE_BY_SIDE.search(_without_commands(text)):
        return None
    try:
        text = DECIMAL.sub(_to_fraction, text).strip()
    except ValueError:
        return None
    return text if text and not STRAY.search(_without_commands(text)) else None


def _to_fraction(match: re.Match[str]) -> str:
    value = read_number(match[0])
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}" if value.denominator > 1 else f"{value}"


def _without_commands(text: str) -> str:
    """Replace LaTeX commands and exponents by a letter, or by a space if they may be invisible."""
    text = ENVIRONMENT.sub(" x ", text).replace(r"\{", "(").replace(r"\}", ")")
    while (shorter := COMMAND.sub(_placeholder, text)) != text:
        text = shorter
    return text


def _placeholder(command: re.Match[str]) -> str:
    return "x" if command[1] is None or VISIBLE.fullmatch(command[1]) else " "


class MathVerifier:
    """The worker of one run. It starts with the first question, and again after it was killed."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._worker: _Worker | None = None
        self._verdicts = BoundedCache[bool](count_values, CACHE_SIZE)
        self._hinted = False
        self.is_installed = find_spec("math_verify") is not None

    async def verify(self, text: str, expected: str) -> bool:
        """Return whether math-verify finds both equal. False if that takes too long.

        waits for: earlier questions, at most `WALL_LIMIT_S` each. unblocked by: the worker's reply or its death.
        """
        answer, reference = prepare(text), prepare(expected)
        if answer is None or reference is None or conflicts(answer, reference):
            return False
        verdict = self._verdicts.get((answer, reference))
        if verdict is None:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, thread_name_prefix="math-verify")
            verdict = await get_running_loop().run_in_executor(self._executor, self._ask, answer, reference)
            self._verdicts.put((answer, reference), verdict)
        return verdict

    def close(self) -> None:
        """End the worker. The next question starts another."""
        self._end_worker()  # which ends the question that the thread waits for
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
        self._executor = None
        self._end_worker()  # the thread may have started another

    def _end_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()

    def hint(self, reference: str) -> None:
        """Log once how to install math-verify."""
        if not self._hinted:
            log.warning("the reward math cannot parse the reference %.60r: an answer scores 1 only if it is the same "
                        "text. To compare sets, intervals, matrices and functions: %s", reference, INSTALL)  # fmt: skip
        self._hinted = True

    def _ask(self, answer: str, reference: str) -> bool:
        worker = self._worker
        if worker is None or not worker.alive:
            self._worker = worker = _Worker()
        try:
            reply = worker.ask({"answer": answer, "reference": reference})
        except (EOFError, OSError) as error:
            if not isinstance(error, TimeoutError) and worker.wait() == -signal.SIGKILL:
                raise InfrastructureFailure("the worker of math-verify was killed, perhaps for memory") from error
            worker.end()
            reply = {"late": True}
        if reply.get("late"):
            log.warning("math-verify exceeded its limits on the answer %.200r, which counts as wrong", answer)
        return reply.get("equal") is True


class _Worker:
    def __init__(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)  # noqa: PTH100
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", WORKER, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=kept | {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"},
                start_new_session=True,  # Ctrl-C is for the run, which closes the worker
            )
        atexit.register(self.end)
        try:
            error = self._receive(START_LIMIT_S).get("error")
        except (EOFError, OSError) as failure:
            self.end()
            raise InfrastructureFailure(f"the worker of math-verify did not start ({failure!r})") from failure
        if error:
            self.end()
            raise UserError(f"math-verify cannot be imported ({error}): {INSTALL}")

    @property
    def alive(self) -> bool:
        return not self._connection.closed and self._process.poll() is None

    def ask(self, question: dict[str, str]) -> dict[str, Any]:
        self._connection.send_bytes(json.dumps(question).encode())
        return self._receive(WALL_LIMIT_S)

    def wait(self) -> int:
        """Return the exit status of a worker that has closed its end."""
        return self._process.wait()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._connection.close()
        atexit.unregister(self.end)

    def _receive(self, seconds: float) -> dict[str, Any]:
        if not self._connection.poll(seconds):
            raise TimeoutError(f"no reply in {seconds:g} s")
        reply: dict[str, Any] = json.loads(self._connection.recv_bytes())
        return reply
