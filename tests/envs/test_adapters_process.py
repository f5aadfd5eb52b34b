"""Packages of other people in a process of their own: what they do wrong stays there, and chance has addresses."""

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
from turnwise.envs.adapters.package_envs import MAX_ACTION, MAX_TEXT, PackageEnv
from turnwise.envs.adapters.process import RemoteEnv
from turnwise.envs.registry import spec_of
from work_for_tests import hang_guard, wait_until

WORLD = """
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
    def later(self, seed):
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
    """The place of a world that does what it is told; its module is found as a package of this process would be."""
    (tmp_path / "odd_world.py").write_text(WORLD)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "odd_world:Odd"
    process.end_processes()


@pytest.fixture
def world(odd: str) -> Callable[..., RemoteEnv]:
    return lambda timeout_s=20.0, **settings: RemoteEnv(odd, settings, timeout_s)


def pid(world: RemoteEnv) -> int:
    return int(world.call("run", code="os.getpid()"))


def test_calls_run_in_another_process_that_worlds_share(world: Callable[..., RemoteEnv]) -> None:
    first, second = world(), world()
    assert pid(first) == pid(second) != os.getpid()
    assert first.about == {"actions": []}


def test_who_is_at_fault_is_told_apart(world: Callable[..., RemoteEnv]) -> None:
    one = world()
    with pytest.raises(ValueError, match="no such thing"):
        one.call("step", action="illegal")
    with pytest.raises(UserError, match="no kind 'even': choose odd"):
        world(kind="even")
    for code in ("1 / 0", "int('x')", "sys.exit(3)", "object()", "'x' * 2**33"):
        with pytest.raises(EnvironmentFailure):
            one.call("run", code=code)
    assert one.call("run", code="1 + 1") == 2, "and the process lives on"


def test_a_package_that_does_not_load_is_the_users_to_mend(odd: str, tmp_path: Path) -> None:
    (tmp_path / "broken_world.py").write_text("import no_such_module_of_ours")
    with pytest.raises(UserError, match=r"does not load, install it again: .*no_such_module_of_ours") as caught:
        RemoteEnv("broken_world:Broken", {}, 20.0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("code", ["time.sleep(3600)", "os._exit(3)", "os.kill(os.getpid(), 9)", "'x' * 2**21"])
def test_what_ends_the_process_fails_its_episodes_and_no_others(world: Callable[..., RemoteEnv], code: str) -> None:
    guilty, beside = world(timeout_s=2.0), world()
    first = pid(beside)
    with hang_guard(), pytest.raises(EnvironmentFailure):
        guilty.call("run", code=code)
    with pytest.raises(InfrastructureFailure, match="and run went otherwise"):  # a process id is another one there
        beside.call("run", code="1")
    assert pid(world()) != first
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


@pytest.mark.parametrize("code", ["os._exit(3)", "os.kill(os.getpid(), 11)", "time.sleep(60)"])
def test_crash_is_one_episodes_failure_and_64_others_go_on(world: Callable[..., RemoteEnv], code: str) -> None:
    alone = world()
    opening, drawn = alone.call("begin", start=1, luck=2)["text"], draws(alone, 6)
    others = [world(timeout_s=20.0) for _ in range(64)]
    for other in others:
        assert other.call("begin", start=1, luck=2)["text"] == opening
        assert draws(other, 3) == drawn[:3]
    with pytest.raises(ValueError):
        others[0].call("step", action="illegal")
    guilty = world(timeout_s=1.0)
    for _ in range(2):
        with pytest.raises(EnvironmentFailure):
            guilty.call("run", code=code)
        for other in others[:2]:
            assert other.call("run", code="self.seed") == 1
        guilty = world(timeout_s=1.0)
    assert all(draws(other, 3) == drawn[3:] for other in others), "where they were, with the same luck"


def test_world_that_goes_otherwise_when_restored_is_infrastructure(world: Callable[..., RemoteEnv], tmp_path) -> None:
    once = tmp_path / "once"
    one, guilty = world(), world()
    one.call("run", code=f"open({str(once)!r}, 'x').close()")
    with pytest.raises(EnvironmentFailure):
        guilty.call("run", code="os._exit(3)")
    with pytest.raises(InfrastructureFailure, match="its process ended by another episode, and run went otherwise"):
        one.call("run", code="1")


def test_an_interrupted_call_leaves_no_reply_for_the_next(world: Callable[..., RemoteEnv]) -> None:
    one = world()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            one.call("run", code="time.sleep(60) or 'late'")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert world().call("run", code="'fresh'") == "fresh"


def test_what_packages_print_disturbs_nothing(world: Callable[..., RemoteEnv]) -> None:
    noise = "[print('x'), os.write(1, b'y' * 100), os.write(2, b'z'), len(sys.stdin.read())]"
    assert world().call("run", code=noise) == [None, 100, 1, 0]


def draws(one: RemoteEnv, count: int = 3) -> list[str]:
    return [one.call("step", action="draw")["text"] for _ in range(count)]


def test_chance_depends_on_the_seeds_alone(world: Callable[..., RemoteEnv]) -> None:
    alone = world()
    opening, drawn = alone.call("begin", start=1, luck=2)["text"], draws(alone)
    mixed, other = world(), world()
    assert mixed.call("begin", start=1, luck=2)["text"] == opening
    assert other.call("begin", start=1, luck=3)["text"] == opening, "the start is the task's"
    there, here = zip(*((draws(other, 1)[0], draws(mixed, 1)[0]) for _ in range(3)), strict=True)
    assert list(here) == drawn, "whatever other episodes draw between"
    numbers = set(" ".join(drawn).split())
    assert len(numbers) == 6 and not set(" ".join(there).split()) & numbers, "and the luck is the member's own"
    assert world().call("begin", start=9, luck=2)["text"] != opening


def test_what_is_tried_aside_moves_no_stream_and_foresees_nothing(world: Callable[..., RemoteEnv]) -> None:
    one, other = world(), world()
    for each in (one, other):
        each.call("begin", start=1, luck=2)
    peeked = one.call("peek")
    assert (drawn := draws(one)) == draws(other)
    assert str(peeked) not in " ".join(drawn)


def test_sets_have_one_order_and_secrets_stay_here(world: Callable[..., RemoteEnv], monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    process.end_processes()
    one = world()
    fixed = subprocess.run(
        [sys.executable, "-c", "print(hash('a'))"], env={"PYTHONHASHSEED": "0"}, capture_output=True, check=True
    )
    assert one.call("run", code="hash('a')") == int(fixed.stdout)
    assert "secret" not in one.call("run", code="str(dict(os.environ))")


def test_worlds_that_nobody_holds_are_forgotten(world: Callable[..., RemoteEnv]) -> None:
    kept = world()
    for _ in range(20):
        world()
    gc.collect()
    kept.call("run", code="0")
    assert kept.call("run", code="len(ALIVE)") == 1


PARENT = """
import os, sys
sys.path.insert(0, sys.argv[1])
from turnwise.envs.adapters.process import RemoteEnv
world = RemoteEnv("odd_world:Odd", {}, 20.0)
print(world.call("run", code="os.getpid()"), flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_killed_run_leaves_no_process_behind(odd: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PARENT, str(tmp_path)], capture_output=True)
    left = Path(f"/proc/{int(done.stdout)}/stat")
    assert wait_until(lambda: not left.exists() or left.read_text().rpartition(")")[2].split()[0] == "Z")


class OddEnv(PackageEnv):
    """Whatever the world says."""

    worker_env: ClassVar[str] = "odd_world:Odd"
    max_turns = 50


def begun(member: int = 0, seed: int = 0) -> tuple:
    kind = spec_of(OddEnv)
    runner = kind.make(Task(env=kind.name, seed=seed), member=member)
    return runner, asyncio.run(runner.start()).messages[1].content


def said(runner, *actions: str) -> list:
    return [asyncio.run(runner.step(assistant(f"<answer>{action}</answer>"))) for action in actions]


def test_the_start_is_of_the_task_and_the_luck_of_the_member(odd: str) -> None:
    first, opening = begun()
    second, again = begun(member=1)
    assert opening == again != begun(seed=1)[1]
    one, other = (said(runner, "draw")[0].messages[0].content for runner in (first, second))
    assert one != other
    assert said(begun(member=1)[0], "draw")[0].messages[0].content == other


def test_a_scene_becomes_an_outcome(odd: str) -> None:
    runner, _ = begun()
    going = "{'text': 'a\\x1b[31mb\\x00c ', 'reward': 0.5}"
    (result,) = said(runner, going)
    assert result.messages[0].content == "abc" and result.reward == 0.5 and not result.over and not result.invalid
    (result,) = said(runner, "illegal")
    assert result.invalid and result.reward == 0 and "abc" in result.messages[0].content
    (result,) = said(runner, "x" * (MAX_ACTION + 1))
    assert result.invalid
    (result,) = said(runner, "{'text': 'end', 'reward': 2, 'over': True, 'success': True}")
    assert result.terminated and result.success and result.reward == 2.0
    assert runner.env.random_action(random.Random(0)) is None, "moves are those of the last scene"


@pytest.mark.parametrize(
    "scene",
    [
        "{'text': 3}",
        "{}",
        "[]",
        "{'text': '', 'reward': 'much'}",
        "{'text': '', 'reward': float('nan')}",
        "{'text': '', 'over': 1}",
        "{'text': '', 'moves': [1]}",
        f"{{'text': 'x' * {MAX_TEXT + 1}}}",
        "'x' * 2**21",
        "int('x')",
    ],
)
def test_a_scene_that_is_none_is_the_environments_failure(odd: str, scene: str) -> None:
    runner, _ = begun()
    with pytest.raises(EnvironmentFailure):
        said(runner, scene)
