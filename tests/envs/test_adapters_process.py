"""Worker processes of third-party packages: failures stay inside, and randomness depends on seeds."""

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.core.messages import assistant
from turnwise.core.task import Task
from turnwise.envs.adapters import process
from turnwise.envs.adapters.package_envs import MAX_ACTION_CHARS, MAX_OBSERVATION_CHARS, PackageEnv
from turnwise.envs.adapters.process import RemoteEnv
from turnwise.envs.registry import spec_of
from work_for_tests import hang_guard, wait_until

WORKER_ENV = """
import os, random, sys, time, weakref
from turnwise.envs.adapters.worker import IllegalAction, InvalidSetting, WorkerEnv, isolated_streams

ALIVE = weakref.WeakSet()

class Odd(WorkerEnv):
    def __init__(self, kind="odd"):
        if kind != "odd":
            raise InvalidSetting(f"no kind {kind!r}: choose odd")
        ALIVE.add(self)
    def about(self):
        return {"actions": []}
    def reset(self, seed):
        self.seed = seed
        return {"text": f"start {random.random()}", "moves": ["draw"]}
    def reseed(self, seed):
        self.own = random.Random(f"own {seed}")
    def step(self, action):
        if action == "illegal":
            raise IllegalAction("no such thing")
        if action == "draw":
            return {"text": f"{random.random()} {self.own.random()}"}
        return eval(action)
    def run(self, code):
        return eval(code)
    def peek(self):
        with isolated_streams(1):
            return random.random()
"""


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Module and class of an environment that runs any code, importable like a package."""
    (tmp_path / "odd_env.py").write_text(WORKER_ENV)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "odd_env:Odd"
    process.end_processes()


@pytest.fixture
def remote_env(odd: str) -> Callable[..., RemoteEnv]:
    return lambda timeout_s=20.0, **settings: RemoteEnv(odd, settings, timeout_s)


def pid(remote_env: RemoteEnv) -> int:
    return int(remote_env.call("run", code="os.getpid()"))


def test_environments_of_a_package_share_a_process(remote_env: Callable[..., RemoteEnv]) -> None:
    first, second = remote_env(), remote_env()
    assert pid(first) == pid(second) != os.getpid()
    assert first.about == {"actions": []}


def test_remote_env_distinguishes_errors(remote_env: Callable[..., RemoteEnv]) -> None:
    one = remote_env()
    with pytest.raises(ValueError, match="no such thing"):
        one.call("step", action="illegal")
    with pytest.raises(UserError, match="no kind 'even': choose odd"):
        remote_env(kind="even")
    for code in ("1 / 0", "int('x')", "sys.exit(3)", "object()", "'x' * 2**33"):
        with pytest.raises(EnvironmentFailure):
            one.call("run", code=code)
    assert one.call("run", code="1 + 1") == 2, "and the process lives on"


def test_import_error_of_a_package_is_a_user_error(odd: str, tmp_path: Path) -> None:
    (tmp_path / "broken_env.py").write_text("import no_such_module_of_ours")
    with pytest.raises(UserError, match=r"cannot be imported: install it again .*no_such_module_of_ours") as caught:
        RemoteEnv("broken_env:Broken", {}, 20.0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("code", ["time.sleep(3600)", "os._exit(3)", "os.kill(os.getpid(), 9)", "'x' * 2**23"])
def test_process_death_fails_only_the_running_call(remote_env: Callable[..., RemoteEnv], code: str) -> None:
    guilty, beside = remote_env(), remote_env()
    guilty._timeout_s = 0.3  # once it is there
    first = pid(beside)
    with hang_guard(), pytest.raises(EnvironmentFailure):
        guilty.call("run", code=code)
    with pytest.raises(InfrastructureFailure, match="and run had another result"):  # process ids differ
        beside.call("run", code="1")
    assert pid(remote_env()) != first
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


@pytest.mark.parametrize("code", ["os._exit(3)", "os.kill(os.getpid(), 11)", "time.sleep(60)"])
def test_crash_leaves_other_episodes_unchanged(remote_env: Callable[..., RemoteEnv], code: str) -> None:
    alone = remote_env()
    opening, drawn = alone.call("begin", start_seed=1, later_seed=2)["text"], draws(alone, 6)
    others = [remote_env(timeout_s=20.0) for _ in range(16)]
    for other in others:
        assert other.call("begin", start_seed=1, later_seed=2)["text"] == opening
        assert draws(other, 3) == drawn[:3]
    with pytest.raises(ValueError):
        others[0].call("step", action="illegal")
    for _ in range(2):
        guilty = remote_env()
        guilty._timeout_s = 0.3  # once it is there
        with pytest.raises(EnvironmentFailure):
            guilty.call("run", code=code)
        for other in others[:2]:
            assert other.call("run", code="self.seed") == 1
    assert all(draws(other, 3) == drawn[3:] for other in others), "with the same state and randomness"


def test_restore_with_other_results_is_infrastructure(remote_env: Callable[..., RemoteEnv], tmp_path) -> None:
    once = tmp_path / "once"
    one, guilty = remote_env(), remote_env()
    one.call("run", code=f"open({str(once)!r}, 'x').close()")
    with pytest.raises(EnvironmentFailure):
        guilty.call("run", code="os._exit(3)")
    with pytest.raises(InfrastructureFailure, match="another episode ended its process, and run had another result"):
        one.call("run", code="1")


def test_interrupted_call_leaves_no_reply(remote_env: Callable[..., RemoteEnv]) -> None:
    one = remote_env()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            one.call("run", code="time.sleep(60) or 'late'")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert remote_env().call("run", code="'fresh'") == "fresh"


def test_package_output_is_discarded(remote_env: Callable[..., RemoteEnv]) -> None:
    noise = "[print('x'), os.write(1, b'y' * 100), os.write(2, b'z'), len(sys.stdin.read())]"
    assert remote_env().call("run", code=noise) == [None, 100, 1, 0]


def draws(one: RemoteEnv, count: int = 3) -> list[str]:
    return [one.call("step", action="draw")["text"] for _ in range(count)]


def test_package_randomness_depends_only_on_seeds(remote_env: Callable[..., RemoteEnv]) -> None:
    alone = remote_env()
    opening, drawn = alone.call("begin", start_seed=1, later_seed=2)["text"], draws(alone)
    mixed, other = remote_env(), remote_env()
    assert mixed.call("begin", start_seed=1, later_seed=2)["text"] == opening
    assert other.call("begin", start_seed=1, later_seed=3)["text"] == opening, "the start is the task's"
    there, here = zip(*((draws(other, 1)[0], draws(mixed, 1)[0]) for _ in range(3)), strict=True)
    assert list(here) == drawn, "whatever other episodes draw between"
    numbers = set(" ".join(drawn).split())
    assert len(numbers) == 6 and not set(" ".join(there).split()) & numbers, "and the randomness is the member's own"
    assert remote_env().call("begin", start_seed=9, later_seed=2)["text"] != opening


def test_isolated_streams_leave_streams_unchanged(remote_env: Callable[..., RemoteEnv]) -> None:
    one, other = remote_env(), remote_env()
    for each in (one, other):
        each.call("begin", start_seed=1, later_seed=2)
    peeked = one.call("peek")
    assert (drawn := draws(one)) == draws(other)
    assert str(peeked) not in " ".join(drawn)


def test_worker_has_a_fixed_hash_seed_and_no_keys(remote_env: Callable[..., RemoteEnv], monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    process.end_processes()
    one = remote_env()
    fixed = subprocess.run(
        [sys.executable, "-c", "print(hash('a'))"], env={"PYTHONHASHSEED": "0"}, capture_output=True, check=True
    )
    assert one.call("run", code="hash('a')") == int(fixed.stdout)
    assert "secret" not in one.call("run", code="str(dict(os.environ))")


def test_unused_environments_are_released(remote_env: Callable[..., RemoteEnv]) -> None:
    kept = remote_env()
    for _ in range(20):
        remote_env()
    gc.collect()
    kept.call("run", code="0")
    assert kept.call("run", code="len(ALIVE)") == 1


PARENT = """
import os, sys
sys.path.insert(0, sys.argv[1])
from turnwise.envs.adapters.process import RemoteEnv
remote_env = RemoteEnv("odd_env:Odd", {}, 20.0)
print(remote_env.call("run", code="os.getpid()"), flush=True)
os.kill(os.getpid(), 9)
"""


def test_killed_run_leaves_no_worker(odd: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PARENT, str(tmp_path)], capture_output=True)
    left = Path(f"/proc/{int(done.stdout)}/stat")
    assert wait_until(lambda: not left.exists() or left.read_text().rpartition(")")[2].split()[0] == "Z")


class OddEnv(PackageEnv):
    """Run any code."""

    worker_env: ClassVar[str] = "odd_env:Odd"
    max_turns = 50


def begun(member: int = 0, seed: int = 0) -> tuple:
    kind = spec_of(OddEnv)
    runner = kind.make(Task(env=kind.name, seed=seed), member=member)
    return runner, asyncio.run(runner.start()).messages[1].content


def said(runner, *actions: str) -> list:
    return [asyncio.run(runner.step(assistant(f"<answer>{action}</answer>"))) for action in actions]


def test_package_env_members_share_only_the_start(odd: str) -> None:
    first, opening = begun()
    second, again = begun(member=1)
    assert opening == again != begun(seed=1)[1]
    one, other = (said(runner, "draw")[0].messages[0].content for runner in (first, second))
    assert one != other
    assert said(begun(member=1)[0], "draw")[0].messages[0].content == other


def test_package_env_converts_results(odd: str) -> None:
    runner, _ = begun()
    going = "{'text': 'a\\x1b[31mb\\x00c ', 'reward': 0.5}"
    (result,) = said(runner, going)
    assert result.messages[0].content == "abc" and result.reward == 0.5 and not result.over and not result.invalid
    (result,) = said(runner, "illegal")
    assert result.invalid and result.reward == 0 and "abc" in result.messages[0].content
    (result,) = said(runner, "x" * (MAX_ACTION_CHARS + 1))
    assert result.invalid
    (result,) = said(runner, "{'text': 'end', 'reward': 2, 'over': True, 'success': True}")
    assert result.terminated and result.success and result.reward == 2.0
    assert runner.env.random_action(random.Random(0)) is None, "moves are those of the last result"


@pytest.mark.parametrize(
    "result_code",
    [
        "{'text': 3}",
        "{}",
        "[]",
        "{'text': '', 'reward': 'much'}",
        "{'text': '', 'reward': float('nan')}",
        "{'text': '', 'over': 1}",
        "{'text': '', 'moves': [1]}",
        f"{{'text': 'x' * {MAX_OBSERVATION_CHARS + 1}}}",
        "'x' * 2**21",
        "int('x')",
    ],
)
def test_package_env_rejects_invalid_results(odd: str, result_code: str) -> None:
    runner, _ = begun()
    with pytest.raises(EnvironmentFailure):
        said(runner, result_code)
