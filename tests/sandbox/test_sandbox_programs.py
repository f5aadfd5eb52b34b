"""Random programs: benign ones give the same result as in Python, hostile ones one result and no leftovers."""

import contextlib
import io
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from sync_sandbox_for_tests import TIERS, SyncSandbox, start_sandbox

from turnwise.sandbox.processes import descendants
from turnwise.sandbox.types import SandboxLimits
from work_for_tests import wait_until

SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))
PROGRAMS = 25 if SOAK == 1 else 500 * SOAK
"""Programs per tier and test."""
LIMITS = SandboxLimits(timeout_s=0.3, memory_mb=128, output_chars=500, grace_s=0.1, scratch_mb=16)

NAMES = st.sampled_from(["a", "b", "c"])
NUMBERS = st.integers(-9, 9).map(str)
EXPRESSIONS = st.recursive(
    NAMES | NUMBERS | st.sampled_from(["'x'", "[1, 2]", "None", "(1,)"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%", "==", "<", "and"]), inner).map(
            lambda parts: f"({' '.join(parts)})"
        ),
        inner.map(lambda one: f"len({one})"),
        inner.map(lambda one: f"str({one})"),
        inner.map(lambda one: f"[{one} for d in range(3)]"),
    ),
    max_leaves=6,
)
LINES = st.one_of(
    st.tuples(NAMES, EXPRESSIONS).map(" = ".join),
    EXPRESSIONS.map(lambda one: f"print({one})"),
    EXPRESSIONS.map(lambda one: f"assert {one}"),
    EXPRESSIONS,
)


@st.composite
def benign_programs(draw: st.DrawFn) -> str:
    lines = ["a, b, c = 1, 'x', [3]"]
    for line in draw(st.lists(LINES, min_size=1, max_size=6)):
        wrapped = draw(
            st.sampled_from(
                ["{}", "if a:\n    {}", "for _ in range(3):\n    {}", "try:\n    {}\nexcept TypeError:\n    pass"]
            )
        )
        lines.append(wrapped.format(line))
    return "\n".join(lines)


ACTIONS = (
    "x.append(bytearray(1 << 20))",
    "os.fork()",
    "os.write(1, b'o' * 5000)",
    "os.write(3, b'junk')",
    "open(f'f{len(x)}', 'wb').write(b'x' * 100000)",
    "os.mkdir(f'd{len(x)}'); os.chdir(f'd{len(x)}')",
    "threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    "signal.signal(signal.SIGINT, signal.SIG_IGN)",
    "os.kill(os.getpid(), random.choice([2, 9, 11, 15, 19]))",
    "os.getpid() == 1 and os.kill(-1, 9)",
    "os.close(random.randrange(6))",
    "sys.setrecursionlimit(10 ** 6)",
    "ctypes.string_at(random.randrange(1 << 20))",
    "libc.syscall(random.randrange(460), *[random.randrange(1 << 20) for _ in range(6)])",
    "time.sleep(0.01)",
    "os.unlink(random.choice(os.listdir('.')))",
    "os.symlink('/', f's{len(x)}')",
    "x.append(os.open('/', os.O_PATH))",
    "sys.exit(random.choice([0, 1]))",
    "raise SystemError('x' * 10000)",
)
HEAD = "import ctypes, os, random, signal, sys, threading, time\nlibc = ctypes.CDLL(None)\nx = []\n"


@st.composite
def hostile_programs(draw: st.DrawFn) -> str:
    lines = draw(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=5))
    loop = draw(st.sampled_from(["", "for _ in range(5):\n", "while True:\n"]))
    indent = "    " if loop else ""
    guarded = [
        f"{indent}try:\n{indent}    {line}\n{indent}except Exception:\n{indent}    x.append(1)\n" for line in lines
    ]
    return HEAD + loop + "".join(guarded)


@pytest.fixture(scope="module", params=TIERS)
def box(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncSandbox]:
    """Use a temporary folder of its own, which must be empty again at the end."""
    folder = tmp_path_factory.mktemp("box")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        before, children = count_resources(), set(descendants(os.getpid()))
        with start_sandbox(request.param, LIMITS) as running:
            yield running
        assert wait_until(lambda: set(descendants(os.getpid())) <= children)
        after = count_resources()  # fewer, if descriptors of earlier tests were collected meanwhile
        assert all(now <= then for now, then in zip(after, before, strict=True)), (after, before)
        assert not list(folder.iterdir())


def count_resources() -> tuple[int, int]:
    """Count descriptors and mounts of this process, without those of podman, which other tests may run meanwhile."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    own = [mount for mount in mounts if "/containers/" not in mount]
    return len(list(Path("/proc/self/fd").iterdir())), len(own)


def run_in_python(code: str) -> tuple[str, str | None]:
    """Run a program here, which its grammar makes harmless; return its output and error.

    Programs whose nested lists exceed the sandbox's memory are skipped.
    """
    output, names = io.StringIO(), dict[str, object]()
    error = None
    with contextlib.redirect_stdout(output), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exec(code, names)
        except Exception as raised:
            error = type(raised).__name__
    assume(all(sys.getsizeof(value) < 1 << 20 for value in names.values()))
    return output.getvalue(), error


@settings(max_examples=PROGRAMS, suppress_health_check=list(HealthCheck))
@given(code=benign_programs())
def test_session_runs_benign_programs_like_python(box: SyncSandbox, code: str) -> None:
    output, error = run_in_python(code)
    result = box.last("import warnings\nwarnings.simplefilter('ignore')", code, timeout_s=60)
    assert result.status == ("ok" if error is None else "error"), result
    assert result.output == output or len(output) > LIMITS.output_chars
    if error is not None:
        assert result.error is not None
        assert result.error.splitlines()[-1].startswith(error)


@settings(max_examples=PROGRAMS, suppress_health_check=list(HealthCheck))
@given(code=hostile_programs())
def test_session_survives_hostile_programs(box: SyncSandbox, code: str) -> None:
    first, second = box.run(code, "print('here')")
    assert first.status in ("ok", "error", "timeout", "memory", "killed")
    assert second.status in ("ok", "timeout", "killed", "error", "memory")
    assert box.last("6 * 7", timeout_s=60).value == "42"
