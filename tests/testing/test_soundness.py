"""Each check of an environment finds the defect that is planted for it, and passes environments without one."""

import asyncio
import os
import random
import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

import turnwise as tw
from turnwise.cli.main import main
from turnwise.concurrency.blocking import allow_interrupts
from turnwise.core.messages import Content
from turnwise.envs.catalogue import CATALOGUE
from turnwise.envs.registry import load_spec, spec_of
from turnwise.envs.spec import EnvSpec
from turnwise.envs.text_env import TextEnv
from turnwise.testing import soundness
from turnwise.testing.soundness import CHECKS, Subject, Verdict, run_check
from turnwise.testing.supervised import check_environment


class Number(TextEnv):
    """Find the number."""

    max_turns = 3

    def reset(self, rng: random.Random) -> str:
        self.secret = rng.randint(1, 10**9)
        self.question = f"Which number follows {self.secret - 1}?"
        return self.question

    def step(self, action: str) -> tw.Outcome:
        return tw.won(reward=1.0) if int(action) == self.secret else tw.goes_on("No.")

    def random_action(self, rng: random.Random) -> str:
        return str(rng.randint(1, 10**9))

    def solve(self) -> list[str]:
        return [str(self.secret)]


class OwnRandomness(Number):
    def reset(self, rng: random.Random) -> str:
        return super().reset(random.Random())


class SharedState(Number):
    steps: ClassVar[list[str]] = []

    def step(self, action: str) -> tw.Outcome:
        self.steps.append(action)
        return tw.goes_on(f"{len(self.steps)} steps so far.")


class Unsolvable(Number):
    def solve(self) -> list[str]:
        return ["0"]


class PaysForWandering(Number):
    def step(self, action: str) -> tw.Outcome:
        outcome = super().step(action)
        return outcome if outcome.success else tw.goes_on("No.", reward=2.0)


class PaysTheEcho(Number):
    def step(self, action: str) -> tw.Outcome:
        return tw.won() if action.strip() == self.question else super().step(action)


class PaysAnything(Number):
    def step(self, action: str) -> tw.Outcome:
        int(action)
        return tw.won(reward=1.0)


class RewardsFailure(Number):
    max_turns = 1

    def step(self, action: str) -> tw.Outcome:
        outcome = super().step(action)
        return tw.won(reward=-1.0) if outcome.success else tw.lost("No.", reward=0.0)


class ReadsTheWholeReply(Number):
    def step(self, action: str) -> tw.Outcome:
        return tw.won() if "win" in action else tw.goes_on("No.")


class OneTaskForAll(Number):
    def reset(self, rng: random.Random) -> str:
        return super().reset(random.Random(rng.randint(1, 40)))


class Endless(Number):
    def step(self, action: str) -> tw.Outcome:
        return tw.goes_on("No. " * 5_000)


class Slow(Number):
    def step(self, action: str) -> tw.Outcome:
        time.sleep(60)
        return tw.goes_on("No.")


class NotFinite(Number):
    def step(self, action: str) -> tw.Outcome:
        return tw.goes_on("No.", reward=float("nan"))


class Repeats(Number):
    def step(self, action: str) -> tw.Outcome:
        return tw.goes_on(f"{action} is wrong.")


class RaisesOnText(Number):
    def step(self, action: str) -> tw.Outcome:
        return tw.goes_on({"7": "No."}.get(action[:1], "") or str([][len(action)]) if len(action) > 9 else "No.")


class OpenPython(tw.ToolEnv):
    """Answer the question."""

    @classmethod
    def make_tools(cls, params: Any) -> list[Any]:
        def python(code: str) -> str:
            """Run a program."""
            shown: list[str] = []
            exec(code, {"print": lambda *texts: shown.append(" ".join(map(str, texts)))})
            return "\n".join(shown)

        return [python]

    def reset(self, rng: random.Random) -> Content:
        return f"What is {rng.randint(1, 10**6)} + 1?"

    def step(self, action: str) -> tw.Outcome:
        return tw.lost("No.")


DEFECTS: dict[str, tuple[type[TextEnv], str]] = {
    "equal seeds give equal episodes": (OwnRandomness, "differs in its start"),
    "episodes share no state": (SharedState, "task 0 differs in turn 0"),
    "the solver gets the maximum": (Unsolvable, "never succeeds"),
    "ignorant agents are not paid": (PaysTheEcho, 'agent "echo" succeeds'),
    "random play is not enough": (PaysAnything, "nothing to learn"),
    "success and reward agree": (RewardsFailure, "unlearn success"),
    "imitated text changes nothing": (ReadsTheWholeReply, "gives reward 1 and success"),
    "programs cannot reach the host": (OpenPython, "read a secret"),
    "held-out tasks are new": (OneTaskForAll, "of them the same: set split_start_states"),
    "prompts stay short": (Endless, "up to 20,"),
    "time and memory": (Slow, "took longer than 0.2 s"),
    "hostile replies are answered": (Repeats, "the answer to 10 MB in an answer repeats it"),
}


def find(check: str, spec: EnvSpec, **limits: Any) -> soundness.Finding:
    with allow_interrupts():
        return asyncio.run(run_check(check, Subject(spec=spec, params=spec.check_params({}), num_tasks=4, **limits)))


def test_every_check_has_a_planted_defect() -> None:
    assert DEFECTS.keys() == CHECKS.keys()


@pytest.mark.parametrize("check", DEFECTS)
def test_check_finds_the_planted_defect(check: str) -> None:
    env, detail = DEFECTS[check]
    found = find(check, spec_of(env), step_s=0.2 if env is Slow else 30.0)
    assert detail in found.detail
    assert found.verdict is (Verdict.NOTE if env is Endless else Verdict.FAILED)


@pytest.mark.parametrize("env", [NotFinite, RaisesOnText])
def test_environment_that_raises_fails_the_check(env: type[TextEnv]) -> None:
    found = find("hostile replies are answered" if env is RaisesOnText else "random play is not enough", spec_of(env))
    assert found.verdict is Verdict.FAILED and "\n" not in found.detail and env.__name__ in found.detail


def test_agent_that_earns_more_than_the_solver_is_found() -> None:
    assert (
        "play earns 6 per episode, the solver 1"
        in find("the solver gets the maximum", spec_of(PaysForWandering)).detail
    )


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("env", [spec_of(Number), load_spec("frozen_lake"), load_spec("lookup"), load_spec("bandit")])
def test_sound_environment_passes(check: str, env: EnvSpec) -> None:
    found = find(check, env)
    assert found.verdict is not Verdict.FAILED, found.detail


class Duel(tw.RolesEnv):
    """The higher number wins what the other one loses."""

    roles = ("first", "second")
    max_turns = 1

    def begin(self, rng: random.Random) -> tw.RolesOutcome:
        self.bids: dict[str, int] = {}
        self.limit = rng.randint(10, 10**6)
        return tw.tell(dict.fromkeys(self.roles, f"Bid from 1 to {self.limit}."))

    def act(self, role: str, action: str) -> tw.RolesOutcome:
        self.bids[role] = int(action)
        if not 1 <= self.bids[role] <= self.limit:
            raise ValueError("not in the range")
        if len(self.bids) < len(self.roles):
            return tw.tell({})
        winner = max(self.roles, key=self.bids.__getitem__)
        return tw.finish(rewards={name: 1.0 if name == winner else -1.0 for name in self.roles}, winners=(winner,))

    def random_move(self, role: str, rng: random.Random) -> str:
        return str(rng.randint(1, self.limit))


def test_environment_of_roles_is_checked_as_one_role_against_scripts() -> None:
    found = find("success and reward agree", spec_of(Duel))
    assert (found.verdict, found.detail) == (Verdict.OK, "successes earn 1 to 1, failures -1 to -1")


@pytest.mark.parametrize("check", ["success and reward agree", "held-out tasks are new"])
@pytest.mark.parametrize("name", ["tic_tac_toe", "text_arena", "text_arena_players"])
def test_game_is_sound(name: str, check: str, optional_part: Callable[..., None]) -> None:
    spec = load_spec(name)
    if spec.install_command:
        optional_part(f"{name} needs {spec.install_command}", *spec.cls.needs)
    assert find(check, spec).verdict is not Verdict.FAILED


def test_few_tasks_with_one_answer_are_not_called_trivial() -> None:
    spec = load_spec("bandit")
    subject = Subject(spec=spec, params=spec.check_params({}), num_tasks=2)
    with allow_interrupts():
        found = asyncio.run(run_check("random play is not enough", subject))
    assert found.verdict is Verdict.NOTE and "repeating 100%" not in found.detail


class FewOpenings(Number):
    def reset(self, rng: random.Random) -> str:
        return super().reset(random.Random(rng.randint(1, 9)))


def test_few_start_states_are_not_called_the_same_tasks() -> None:
    found = find("held-out tasks are new", spec_of(FewOpenings))
    assert found.verdict is Verdict.SKIPPED and "32 tasks start in" in found.detail


CODE = """
import os
import turnwise as tw

class Guess(tw.TextEnv):
    '''Guess the number.'''
    max_turns = 2

    def reset(self, rng):
        self.secret = rng.randint(1, 10**9)
        return f"Which number comes after {self.secret - 1}?"

    def step(self, action):
        return tw.won() if int(action) == self.secret else tw.goes_on("No.")

class Crash(Guess):
    def step(self, action):
        os.abort()

class Hang(Guess):
    def step(self, action):
        sum(range(10**14))  # handles no signal until it is done
"""


@pytest.fixture
def own(tmp_path: Any) -> Callable[[str], str]:
    (tmp_path / "own.py").write_text(CODE)
    return lambda name: f"{tmp_path / 'own.py'}:{name}"


def test_crash_fails_its_checks_and_the_others_go_on(own: Callable[[str], str]) -> None:
    found = {each.check: each for each in check_environment(own("Crash"), {}, num_tasks=2, step_s=30, check_s=120)}
    assert found.keys() == CHECKS.keys()
    crash = found["random play is not enough"]
    assert (crash.verdict, "ended with signal 6" in crash.detail) == (Verdict.FAILED, True)
    assert found["the solver gets the maximum"].verdict is Verdict.SKIPPED


def test_hang_in_c_code_fails_the_check(own: Callable[[str], str]) -> None:
    check = "random play is not enough"
    (found,) = check_environment(own("Hang"), {}, num_tasks=2, step_s=1, check_s=20, checks=[check])
    assert found.verdict is Verdict.FAILED and "within 20 s" in found.detail


def test_command_fails_if_a_check_fails(own: Callable[[str], str], capsys: Any) -> None:
    assert main(["envs", "check", own("Guess"), "--tasks", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Guess: 3 tasks" and len(lines) == 1 + len(CHECKS)
    assert not os.environ.get("TURNWISE_CANARY")
    assert main(["envs", "check", own("Crash"), "--tasks", "2"]) == 2
    assert "of 12 checks failed" in capsys.readouterr().err
    assert main(["envs", "check", "sokban"]) == 2
    assert 'did you mean "sokoban"?' in capsys.readouterr().err


SLOW = ("text_world", "tools", "openenv", "harbor", "verifiers")
"""Takes seconds per game to compile; needs a file of tasks; needs a server; needs a folder of tasks."""


@pytest.mark.soak  # the checks of rules and rewards of each are in tests/envs
@pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in SLOW])
def test_built_in_environment_is_sound(name: str, optional_part: Callable[..., None]) -> None:
    spec = load_spec(name)
    if spec.install_command:
        optional_part(f"{name} needs {spec.install_command}", *spec.cls.needs)
    found = check_environment(name, spec.check_params({}), num_tasks=4, step_s=60, check_s=600)
    assert [(finding.check, finding.detail) for finding in found if finding.verdict is Verdict.FAILED] == []
