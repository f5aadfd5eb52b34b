"""Sessions with benign code, and the errors they report."""

import asyncio
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sync_sandbox_for_tests import TIERS, SyncSandbox, start_sandbox

from turnwise.sandbox.python_install import DEFAULT_PACKAGES
from turnwise.sandbox.types import RunResult
from work_for_tests import HANG_S

HALT_SIGNAL = "" if platform.machine() == "aarch64" else "|signal SIGSEGV"
"""How the C library of other machines ends a process that SIGABRT does not."""


@pytest.fixture(scope="module", params=TIERS)
def box(request: pytest.FixtureRequest) -> Iterator[SyncSandbox]:
    with start_sandbox(request.param, packages=DEFAULT_PACKAGES) as running:
        yield running


def test_session_keeps_variables(box: SyncSandbox) -> None:
    first, second = box.run("x = 6", "def f(y):\n    return x * y\nf(7)")
    assert (first.value, first.status, first.error) == (None, "ok", None)
    assert (second.value, second.output, second.status) == ("42", "", "ok")
    assert second.seconds > 0


def test_value_is_the_last_expression_unless_none(box: SyncSandbox) -> None:
    assert [result.value for result in box.run("1; 2", "None", "x = 3", "'a'", "")] == ["2", None, None, "'a'", None]


def test_output_keeps_the_order_of_both_streams(box: SyncSandbox) -> None:
    code = (
        "import sys, os\nprint('a'); print('b', file=sys.stderr); sys.stdout.flush(); os.write(2, b'c\\n'); print('d')"
    )
    assert box.last(code).output == "a\nb\nc\nd\n"


def test_trace_shows_source_lines_and_the_last_library_frame(box: SyncSandbox) -> None:
    first, second = box.run("def f(a):\n    return 1 / a", "import json\nf(2)\njson.loads('{')")
    assert first.error is None
    assert second.status == "error"
    assert second.error is not None
    lines = second.error.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == "  <python 2>, line 3, in <module>: json.loads('{')"
    assert lines[2].endswith("more")
    assert lines[3].startswith("  decoder.py, line ")
    assert lines[-1].startswith("json.decoder.JSONDecodeError: Expecting property name")
    assert "turnwise" not in second.error and "site-packages" not in second.error


def test_trace_shows_lines_of_earlier_calls(box: SyncSandbox) -> None:
    error = box.last("def f(a):\n    return 1 / a", "f(0)").error
    assert error is not None
    assert "  <python 1>, line 2, in f: return 1 / a" in error
    assert error.endswith("ZeroDivisionError: division by zero")


def test_trace_of_a_deep_recursion_is_short(box: SyncSandbox) -> None:
    error = box.last("def f(n):\n    return f(n + 1)\nf(0)").error
    assert error is not None
    assert len(error.splitlines()) < 12
    assert "more" in error and "RecursionError" in error


def test_trace_of_a_syntax_error_points_at_it(box: SyncSandbox) -> None:
    result = box.last("x = 1\ny = = 2")
    assert result.status == "error"
    assert result.error == "  <python 1>, line 2\n    y = = 2\n        ^\nSyntaxError: invalid syntax"


def test_trace_names_the_cause_with_its_last_line(box: SyncSandbox) -> None:
    cause = "import json\ndef f():\n    return json.loads('x')\ntry:\n    f()\nexcept ValueError as e:\n"
    error = box.last(f"{cause}    raise KeyError('bad') from e").error
    assert error is not None
    lines = error.splitlines()
    assert lines[0] == "  <python 1>, line 3, in f: return json.loads('x')"
    assert lines[1].startswith("json.decoder.JSONDecodeError: Expecting value") and lines[2] == "which led to:"
    assert lines[-2:] == ["  <python 1>, line 7, in <module>: raise KeyError('bad') from e", "KeyError: 'bad'"]
    never_raised = box.last("raise KeyError('bad') from ValueError('odd')").error
    assert never_raised is not None and never_raised.startswith("ValueError: odd\nwhich led to:\nTraceback")


def test_long_output_is_truncated_in_the_middle(box: SyncSandbox) -> None:
    result = box.last("print('a' * 5000 + 'MIDDLE' + 'b' * 5000)\n'c' * 9000")
    assert result.output.startswith("aaa") and result.output.endswith("bbb\n")
    assert "cut" in result.output and "MIDDLE" not in result.output
    assert result.value is not None
    assert len(result.output) < 2100 and len(result.value) < 2100
    assert "[8007 characters cut]" in result.output and "[7002 characters cut]" in result.value


def test_truncation_counts_characters_not_bytes(box: SyncSandbox) -> None:
    assert "[998001 characters cut]" in box.last("print('\u00e9' * 1000000)").output


def test_timeout_keeps_variables(box: SyncSandbox) -> None:
    async def calls() -> list[RunResult]:
        async with box.sandbox.session() as session:
            loop = "while True:\n    x += 0"
            return [await session.run("x = 5"), await session.run(loop, timeout_s=0.3), await session.run("x")]

    first, second, third = box.wait(calls())
    assert (first.status, second.status, third.value, third.output) == ("ok", "timeout", "5", "")
    assert second.error is not None
    assert "<python 2>" in second.error and "the time limit is 0.3 s" in second.error
    assert second.seconds >= 0.3


def test_memory_error_keeps_variables(box: SyncSandbox) -> None:
    first, second = box.run("x = 5\ny = bytearray(3 << 30)", "x")
    assert (first.status, second.value, second.output) == ("memory", "5", "")
    assert first.error is not None
    assert "256 MiB" in first.error


def test_dead_session_restarts_at_the_next_call(box: SyncSandbox) -> None:
    _, died, fresh, after = box.run("x = 5", "import os\nos._exit(7)", "'x' in dir()", "1")
    assert (died.status, fresh.value, after.output) == ("killed", "False", "")
    assert died.error == "the session died: the interpreter was ended with status 7; its variables are lost"
    assert fresh.output == "[the interpreter was restarted: variables from earlier calls are lost]\n"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("os.abort()", f"(aborted, by its own code or by a library{HALT_SIGNAL})"),
        ("os.closerange(0, 1000)", "its code closed a descriptor that is not its own"),
        ("os.close(3); import time; time.sleep(9)", "its code closed a descriptor that is not its own"),
    ],
)
def test_dead_session_reports_the_cause(box: SyncSandbox, code: str, cause: str) -> None:
    for _ in range(5):
        error = box.last(f"import os; {code}").error
        assert error is not None and re.fullmatch(f"the session died: {cause}; its variables are lost", error)


def test_segfault_ends_only_its_own_session(box: SyncSandbox) -> None:
    async def both() -> tuple[RunResult, RunResult]:
        async with box.sandbox.session() as one, box.sandbox.session() as other:
            await one.run("x = 1")
            await other.run("x = 2")
            crash = await one.run("import ctypes\nctypes.string_at(0)")
            return crash, await other.run("x")

    crash, other = box.wait(both())
    assert (crash.status, other.value, other.output) == ("killed", "2", "")
    assert crash.error is not None
    assert "SIGSEGV" in crash.error


def test_sessions_run_concurrently(box: SyncSandbox) -> None:
    async def one(number: int) -> str | None:
        async with box.sandbox.session() as session:
            await session.run(f"n = {number}")
            return (await session.run("n")).value

    async def four_beside_one_that_sleeps() -> list[str | None]:
        async with box.sandbox.session() as session:
            asleep = asyncio.ensure_future(session.run("import time\ntime.sleep(600)", timeout_s=600))
            found = await asyncio.gather(*map(one, range(4)))
            assert not asleep.done()
            asleep.cancel()
            await asyncio.gather(asleep, return_exceptions=True)
            return found

    assert box.wait(four_beside_one_that_sleeps()) == ["0", "1", "2", "3"]


def test_calls_of_one_session_run_in_order(box: SyncSandbox) -> None:
    async def two() -> list[RunResult]:
        async with box.sandbox.session() as session:
            return await asyncio.gather(session.run("import time\ntime.sleep(0.1)\nx = 1"), session.run("x"))

    assert box.wait(two())[1].value == "1"


def test_cancelled_call_kills_its_code_and_the_session_restarts(box: SyncSandbox) -> None:
    async def cancelled() -> RunResult:
        async with box.sandbox.session() as session:
            await session.run("x = 1")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.run("while True: pass"), 0.2)
            return await session.run("'x' in dir()")

    result = box.wait(cancelled())
    assert result.value == "False"
    assert "restarted" in result.output


def test_session_cancelled_during_its_start_leaves_nothing(box: SyncSandbox) -> None:
    async def one() -> None:
        async with box.sandbox.session() as session:
            await session.run("1")

    async def cancelled() -> None:
        for wait in (0, 0.0005, 0.001, 0.002, 0.004, 0.008):
            task = asyncio.ensure_future(one())
            await asyncio.sleep(wait)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        while box.sandbox._zygote._running:
            await asyncio.sleep(0.02)

    box.wait(asyncio.wait_for(cancelled(), HANG_S))
    assert not box.sandbox._zygote._running
    assert not box.sandbox._processes
    assert box.last("6 * 7").value == "42"


def test_session_seed_determines_random_numbers(box: SyncSandbox) -> None:
    code = (
        "import random\nprint(random.random(), hash('a'))\ntry:\n    import numpy\n    print(numpy.random.rand())\n"
        "except ImportError:\n    pass"
    )
    one, again, other = (box.last(code, seed=seed).output for seed in (1, 1, 2))
    assert one == again
    assert one != other


def test_too_long_code_is_rejected(box: SyncSandbox) -> None:
    result = box.last("1" * 100_001)
    assert result.status == "error"
    assert result.error == "the code has 100001 characters; the limit is 100000"


@pytest.mark.parametrize(("code", "what"), [("x = 1\0", "a null character"), ("'\ud800'", "an unpaired surrogate")])
def test_code_with_an_invalid_character_is_rejected(box: SyncSandbox, code: str, what: str) -> None:
    first, second, third = box.run("x = 5", code, "x")
    assert (second.error, second.status) == (f"the code holds {what}: remove it", "error")
    assert (third.value, third.output) == ("5", first.output)


def test_exit_ends_the_call_but_not_the_session(box: SyncSandbox) -> None:
    first, second, third = box.run("x = 1\nexit()\nx = 2", "x", "import sys\nsys.exit('bad')")
    assert (first.status, second.value, third.status, third.error) == ("ok", "1", "error", "SystemExit: bad")


PROGRAMS = {
    "threads": "from concurrent.futures import ThreadPoolExecutor\nsum(ThreadPoolExecutor(4).map(abs, range(-5, 5)))",
    "asyncio": "import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n    return 25\nasyncio.run(f())",
    "sqlite3": "import sqlite3\nc = sqlite3.connect('a.db')\nc.execute('create table t (x)')\n"
    "c.execute('insert into t values (25)')\nc.commit()\nc.execute('select x from t').fetchone()[0]",
    "tempfile": "import tempfile\nwith tempfile.NamedTemporaryFile('w+') as f:\n"
    "    f.write('25'); f.seek(0); t = f.read()\nint(t)",
    "folders": "import os, shutil, pathlib\npathlib.Path('a/b').mkdir(parents=True)\n"
    "pathlib.Path('a/b/c').write_text('25')\n"
    "shutil.copytree('a', 'd')\nt = int(pathlib.Path('d/b/c').read_text())\nshutil.rmtree('a')\nt",
    "dataclasses and pickle": "import pickle\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\n"
    "pickle.loads(pickle.dumps(A(25))).x",
    "the standard library": "import decimal, fractions, hashlib, json, lzma, re, statistics, zlib, unittest\n25",
    "numpy": "import numpy as np\nint((np.arange(25) @ np.arange(25)) // 196)",
    "sympy": "from sympy import *\nx = symbols('x')\nint(solve(x - 25)[0])",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_session_runs_common_libraries(box: SyncSandbox, name: str) -> None:
    if name in ("numpy", "sympy") and name not in box.sandbox.packages:
        pytest.skip(f"{name} is not installed")
    result = box.last(PROGRAMS[name])
    assert (result.status, result.value) == ("ok", "25"), result


def test_session_cannot_read_other_packages(box: SyncSandbox) -> None:
    """Packages next to numpy may contain graders and answers."""
    path = repr(pytest.__file__)
    results = box.run("import pytest", f"open({path}).read()", "import turnwise.core.task")
    assert [result.status for result in results] == ["error"] * 3


def test_session_starts_processes_in_the_namespaces_tier(box: SyncSandbox) -> None:
    pool = (
        "import multiprocessing as m\ndef f(x):\n    return x * x\n"
        "with m.Pool(2) as p:\n    r = sum(p.map(f, [3, 4]))\nr"
    )
    child = (
        "import subprocess, sys\nint(subprocess.run([sys.executable, '-c', 'print(25)'], capture_output=True).stdout)"
    )
    results = box.run(pool, child, pool)
    expected = "25" if box.sandbox.tier == "namespaces" else None
    assert [result.value for result in results] == [expected] * 3, results


def test_session_is_stopped_between_calls(box: SyncSandbox) -> None:
    """Threads left behind by a call use no CPU and resume in the next call."""
    burn = "import threading\ncount = 0\ndef f():\n    global count\n    while True: count += 1\n"

    async def look() -> tuple[list[str], RunResult]:
        async with box.sandbox.session() as session:
            await session.run(burn + "threading.Thread(target=f, daemon=True).start()")
            states = []
            for _ in range(2):
                await asyncio.sleep(0.1)
                fields = Path(f"/proc/{session.pid}/stat").read_text().rpartition(")")[2].split()
                states.append(f"{fields[0]} {fields[11]}")
            goes_on = "before = count\nimport time\nwhile count == before: time.sleep(0.01)\ncount > before"
            return states, await session.run(goes_on)

    (first, second), result = box.wait(look())
    assert first == second
    assert first.startswith("T ")
    assert result.value == "True"


def test_session_cannot_reach_another(box: SyncSandbox) -> None:
    async def duel() -> RunResult:
        async with box.sandbox.session() as one, box.sandbox.session() as other:
            first = await one.run("import os\nopen('secret', 'w').write('MINE')\nprint(os.getcwd(), os.getpid())")
            folder, pid = first.output.split()
            assert one._process is not None and one._process.handle is not None
            outer = one._process.handle.pid
            attack = f"""
import os
for path in ('{folder}/secret', '{folder}/../0/secret', '/tmp/secret'):
    try: print(open(path).read())
    except OSError: pass
try: print([n for n in os.listdir('{folder}/..') if n.isdigit() and '{folder}' != '/tmp'])
except OSError: pass
for pid in ({outer}, {pid}):
    if pid != os.getpid():
        try: os.kill(pid, 9); print('KILLED')
        except OSError: pass
"""
            result = await other.run(attack)
            assert "MINE" not in result.output and "KILLED" not in result.output and "['" not in result.output, result
            return await one.run("open('secret').read()")

    result = box.wait(duel())
    assert (result.value, result.output) == ("'MINE'", "")


def test_session_starts_with_libraries_and_keeps_its_process(box: SyncSandbox) -> None:
    """The reason why calls are fast; benchmarks/sandbox.py measures them."""
    imported = f"import sys\nsorted(set({sorted(box.sandbox.packages)!r}) & set(sys.modules))"
    (loaded, *pids) = box.run(imported, "import os\nos.getpid()", "os.getpid()", "os.getpid()")
    assert loaded.value == repr(sorted(box.sandbox.packages))
    assert len({result.value for result in pids}) == 1
