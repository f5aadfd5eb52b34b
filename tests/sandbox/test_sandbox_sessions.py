"""What a session does for honest code, and how it tells what went wrong."""

import asyncio
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_box_for_tests import TIERS, Box, started

from turnwise.sandbox.python_install import DEFAULT_PACKAGES
from turnwise.sandbox.types import RunResult
from work_for_tests import HANG_S

HALTED = "" if platform.machine() == "aarch64" else "|signal SIGSEGV"
"""How the C library of other machines ends a process that no signal ends."""


@pytest.fixture(scope="module", params=TIERS)
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    with started(request.param, packages=DEFAULT_PACKAGES) as running:
        yield running


def test_variables_stay_from_call_to_call(box: Box) -> None:
    first, second = box.run("x = 6", "def f(y):\n    return x * y\nf(7)")
    assert (first.value, first.status, first.error) == (None, "ok", None)
    assert (second.value, second.output, second.status) == ("42", "", "ok")
    assert second.seconds > 0


def test_only_a_last_expression_that_is_not_none_is_a_value(box: Box) -> None:
    assert [result.value for result in box.run("1; 2", "None", "x = 3", "'a'", "")] == ["2", None, None, "'a'", None]


def test_output_keeps_its_order_across_both_streams_and_below_python(box: Box) -> None:
    code = (
        "import sys, os\nprint('a'); print('b', file=sys.stderr); sys.stdout.flush(); os.write(2, b'c\\n'); print('d')"
    )
    assert box.last(code).output == "a\nb\nc\nd\n"


def test_a_trace_shows_own_lines_and_where_the_library_gave_up(box: Box) -> None:
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


def test_a_trace_of_an_earlier_calls_function_shows_its_line(box: Box) -> None:
    error = box.last("def f(a):\n    return 1 / a", "f(0)").error
    assert error is not None
    assert "  <python 1>, line 2, in f: return 1 / a" in error
    assert error.endswith("ZeroDivisionError: division by zero")


def test_a_deep_recursion_is_a_short_trace(box: Box) -> None:
    error = box.last("def f(n):\n    return f(n + 1)\nf(0)").error
    assert error is not None
    assert len(error.splitlines()) < 12
    assert "more" in error and "RecursionError" in error


def test_a_syntax_error_points_at_its_place(box: Box) -> None:
    result = box.last("x = 1\ny = = 2")
    assert result.status == "error"
    assert result.error == "  <python 1>, line 2\n    y = = 2\n        ^\nSyntaxError: invalid syntax"


def test_a_cause_is_named_with_its_own_last_line(box: Box) -> None:
    cause = "import json\ndef f():\n    return json.loads('x')\ntry:\n    f()\nexcept ValueError as e:\n"
    error = box.last(f"{cause}    raise KeyError('bad') from e").error
    assert error is not None
    lines = error.splitlines()
    assert lines[0] == "  <python 1>, line 3, in f: return json.loads('x')"
    assert lines[1].startswith("json.decoder.JSONDecodeError: Expecting value") and lines[2] == "which led to:"
    assert lines[-2:] == ["  <python 1>, line 7, in <module>: raise KeyError('bad') from e", "KeyError: 'bad'"]
    never_raised = box.last("raise KeyError('bad') from ValueError('odd')").error
    assert never_raised is not None and never_raised.startswith("ValueError: odd\nwhich led to:\nTraceback")


def test_long_texts_are_cut_in_the_middle(box: Box) -> None:
    result = box.last("print('a' * 5000 + 'MIDDLE' + 'b' * 5000)\n'c' * 9000")
    assert result.output.startswith("aaa") and result.output.endswith("bbb\n")
    assert "cut" in result.output and "MIDDLE" not in result.output
    assert result.value is not None
    assert len(result.output) < 2100 and len(result.value) < 2100
    assert "[8007 characters cut]" in result.output and "[7002 characters cut]" in result.value


def test_characters_are_counted_and_not_bytes(box: Box) -> None:
    assert "[998001 characters cut]" in box.last("print('\u00e9' * 1000000)").output


def test_a_timeout_keeps_the_variables_and_says_so(box: Box) -> None:
    async def calls() -> list[RunResult]:
        async with box.box.session() as session:
            loop = "while True:\n    x += 0"
            return [await session.run("x = 5"), await session.run(loop, timeout_s=0.3), await session.run("x")]

    first, second, third = box.wait(calls())
    assert (first.status, second.status, third.value, third.output) == ("ok", "timeout", "5", "")
    assert second.error is not None
    assert "<python 2>" in second.error and "the time limit is 0.3 s" in second.error
    assert second.seconds >= 0.3


def test_a_lack_of_memory_keeps_the_variables_and_says_so(box: Box) -> None:
    first, second = box.run("x = 5\ny = bytearray(3 << 30)", "x")
    assert (first.status, second.value, second.output) == ("memory", "5", "")
    assert first.error is not None
    assert "256 MiB" in first.error


def test_a_dead_session_says_so_and_the_next_call_starts_afresh(box: Box) -> None:
    _, died, fresh, after = box.run("x = 5", "import os\nos._exit(7)", "'x' in dir()", "1")
    assert (died.status, fresh.value, after.output) == ("killed", "False", "")
    assert died.error == "the session died: the interpreter was ended with status 7; its variables are lost"
    assert fresh.output == "[the interpreter was restarted: variables from earlier calls are lost]\n"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("os.abort()", f"(aborted, by its own code or by a library{HALTED})"),
        ("os.closerange(0, 1000)", "its code closed a descriptor that is not its own"),
        ("os.close(3); import time; time.sleep(9)", "its code closed a descriptor that is not its own"),
    ],
)
def test_what_a_session_died_of_is_told_as_it_was(box: Box, code: str, why: str) -> None:
    for _ in range(5):
        error = box.last(f"import os; {code}").error
        assert error is not None and re.fullmatch(f"the session died: {why}; its variables are lost", error)


def test_a_segfault_ends_only_its_own_session(box: Box) -> None:
    async def both() -> tuple[RunResult, RunResult]:
        async with box.box.session() as one, box.box.session() as other:
            await one.run("x = 1")
            await other.run("x = 2")
            crash = await one.run("import ctypes\nctypes.string_at(0)")
            return crash, await other.run("x")

    crash, other = box.wait(both())
    assert (crash.status, other.value, other.output) == ("killed", "2", "")
    assert crash.error is not None
    assert "SIGSEGV" in crash.error


def test_sessions_run_side_by_side(box: Box) -> None:
    async def one(number: int) -> str | None:
        async with box.box.session() as session:
            await session.run(f"n = {number}")
            return (await session.run("n")).value

    async def four_beside_one_that_sleeps() -> list[str | None]:
        async with box.box.session() as session:
            asleep = asyncio.ensure_future(session.run("import time\ntime.sleep(600)", timeout_s=600))
            found = await asyncio.gather(*map(one, range(4)))
            assert not asleep.done()
            asleep.cancel()
            await asyncio.gather(asleep, return_exceptions=True)
            return found

    assert box.wait(four_beside_one_that_sleeps()) == ["0", "1", "2", "3"]


def test_calls_of_one_session_wait_for_each_other(box: Box) -> None:
    async def two() -> list[RunResult]:
        async with box.box.session() as session:
            return await asyncio.gather(session.run("import time\ntime.sleep(0.1)\nx = 1"), session.run("x"))

    assert box.wait(two())[1].value == "1"


def test_a_cancelled_call_kills_its_code_and_leaves_a_session_that_works(box: Box) -> None:
    async def cancelled() -> RunResult:
        async with box.box.session() as session:
            await session.run("x = 1")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.run("while True: pass"), 0.2)
            return await session.run("'x' in dir()")

    result = box.wait(cancelled())
    assert result.value == "False"
    assert "restarted" in result.output


def test_a_session_cancelled_while_it_starts_leaves_nothing(box: Box) -> None:
    async def one() -> None:
        async with box.box.session() as session:
            await session.run("1")

    async def cancelled() -> None:
        for wait in (0, 0.0005, 0.001, 0.002, 0.004, 0.008):
            task = asyncio.ensure_future(one())
            await asyncio.sleep(wait)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        while box.box._zygote._running:
            await asyncio.sleep(0.02)

    box.wait(asyncio.wait_for(cancelled(), HANG_S))
    assert not box.box._zygote._running
    assert not box.box._processes
    assert box.last("6 * 7").value == "42"


def test_equal_seeds_repeat_and_others_differ(box: Box) -> None:
    code = (
        "import random\nprint(random.random(), hash('a'))\ntry:\n    import numpy\n    print(numpy.random.rand())\n"
        "except ImportError:\n    pass"
    )
    one, again, other = (box.last(code, seed=seed).output for seed in (1, 1, 2))
    assert one == again
    assert one != other


def test_code_that_is_too_long_is_not_run(box: Box) -> None:
    result = box.last("1" * 100_001)
    assert result.status == "error"
    assert result.error == "the code has 100001 characters; 100000 are allowed"


@pytest.mark.parametrize(("code", "what"), [("x = 1\0", "a null character"), ("'\ud800'", "half a character")])
def test_code_with_a_character_that_is_none_is_refused_in_one_line(box: Box, code: str, what: str) -> None:
    first, second, third = box.run("x = 5", code, "x")
    assert (second.error, second.status) == (f"the code holds {what}: leave it out", "error")
    assert (third.value, third.output) == ("5", first.output)


def test_exit_ends_the_call_and_not_the_session(box: Box) -> None:
    first, second, third = box.run("x = 1\nexit()\nx = 2", "x", "import sys\nsys.exit('bad')")
    assert (first.status, second.value, third.status, third.error) == ("ok", "1", "error", "SystemExit: bad")


WORKS = {
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


@pytest.mark.parametrize("name", WORKS)
def test_honest_code_works(box: Box, name: str) -> None:
    if name in ("numpy", "sympy") and name not in box.box.packages:
        pytest.skip(f"{name} is not installed")
    result = box.last(WORKS[name])
    assert (result.status, result.value) == ("ok", "25"), result


def test_packages_that_were_not_asked_for_stay_out(box: Box) -> None:
    """They stand beside numpy: its neighbours may hold graders and answers."""
    path = repr(pytest.__file__)
    results = box.run("import pytest", f"open({path}).read()", "import turnwise.core.task")
    assert [result.status for result in results] == ["error"] * 3


def test_multiprocessing_and_subprocesses_work_where_processes_do(box: Box) -> None:
    pool = (
        "import multiprocessing as m\ndef f(x):\n    return x * x\n"
        "with m.Pool(2) as p:\n    r = sum(p.map(f, [3, 4]))\nr"
    )
    child = (
        "import subprocess, sys\nint(subprocess.run([sys.executable, '-c', 'print(25)'], capture_output=True).stdout)"
    )
    results = box.run(pool, child, pool)
    expected = "25" if box.box.tier == "namespaces" else None
    assert [result.value for result in results] == [expected] * 3, results


def test_between_calls_a_session_stands_still(box: Box) -> None:
    """Threads that a call left behind neither burn nor act, and go on in the next call."""
    burn = "import threading\ncount = 0\ndef f():\n    global count\n    while True: count += 1\n"

    async def look() -> tuple[list[str], RunResult]:
        async with box.box.session() as session:
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


def test_one_session_cannot_reach_another(box: Box) -> None:
    async def duel() -> RunResult:
        async with box.box.session() as one, box.box.session() as other:
            begun = await one.run("import os\nopen('secret', 'w').write('MINE')\nprint(os.getcwd(), os.getpid())")
            folder, pid = begun.output.split()
            assert one._process is not None and one._process.started is not None
            outer = one._process.started.pid
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
            tried = await other.run(attack)
            assert "MINE" not in tried.output and "KILLED" not in tried.output and "['" not in tried.output, tried
            return await one.run("open('secret').read()")

    result = box.wait(duel())
    assert (result.value, result.output) == ("'MINE'", "")


def test_a_session_begins_with_its_libraries_and_keeps_its_process(box: Box) -> None:
    """Why calls are quick: nothing is imported for a session, and nothing started for a call. How quick they are:
    benchmarks/sandbox.py.
    """
    imported = f"import sys\nsorted(set({sorted(box.box.packages)!r}) & set(sys.modules))"
    (loaded, *pids) = box.run(imported, "import os\nos.getpid()", "os.getpid()", "os.getpid()")
    assert loaded.value == repr(sorted(box.box.packages))
    assert len({result.value for result in pids}) == 1
