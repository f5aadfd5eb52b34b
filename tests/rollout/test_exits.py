"""sys.exit in code of others is a failure of that code: it never ends a run, least of all with status 0."""

import asyncio
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from episodes_for_tests import limits
from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, Outage, UserError
from turnwise.core.messages import Picture, assistant
from turnwise.core.task import Task
from turnwise.engine.scripted import ScriptedEngine
from turnwise.envs.registry import spec_of
from turnwise.envs.seeds import seed_for
from turnwise.envs.text_env import Outcome, TextEnv, won
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.render.renderer import Renderer
from turnwise.rewards.factory import build_rubric
from turnwise.rewards.rubric import Rubric, Submission
from turnwise.rewards.scoring import score_submission
from turnwise.rewards.services import RewardServices
from turnwise.rollout.collect import Collector
from turnwise.rollout.context import FullContext
from turnwise.rollout.context_modes import _written
from turnwise.tools.function import from_function
from turnwise.tools.toolbox import ToolBox
from turnwise.training.sft import play_demonstration
from turnwise.user_code.references import import_file

PLACES = ["__init__", "reset", "step", "draw", "state_key", "rules"]


class Leaves(TextEnv):
    """Ends the program."""

    class Params(TextEnv.Params):
        where: str = "step"

    left: ClassVar[list[int]] = []
    """Number of times that it still exits."""

    def _may_leave(self, where: str) -> None:
        if where == self.params.where and self.left:
            self.left.pop()
            sys.exit(0)

    def __init__(self, params: Mapping[str, Any] | None = None, rng: random.Random | None = None) -> None:
        super().__init__(params, rng)
        self._may_leave("__init__")

    def rules(self) -> str:
        self._may_leave("rules")
        return "Say it."

    def reset(self, rng: random.Random) -> str:
        self._may_leave("reset")
        return "Well?"

    def step(self, action: str) -> Outcome:
        self._may_leave("step")
        return won("Yes.")

    def draw(self) -> Picture | None:
        self._may_leave("draw")
        return None

    def state_key(self) -> str:
        self._may_leave("state_key")
        return "here"

    def random_answer(self, rng: random.Random) -> str:
        self._may_leave("random_answer")
        return "<answer>Up</answer>"


def collected(where: str, exits: int) -> Any:
    Leaves.left[:] = [0] * exits
    renderer, kind = Renderer(tiny_tokenizer()), spec_of(Leaves)
    said = renderer.answer("<answer>Up</answer>")
    collector = Collector(
        policy=ScriptedEngine(lambda key, turn, ids: said, list(renderer.stop_ids)),
        make_env=kind.make,
        context=FullContext(renderer),
        limits=limits(max_new_tokens=100, max_tokens=10_000),
        in_flight=1,
        attempts=3,
        run_seed=0,
    )
    task = Task(env=kind.name, seed=seed_for("train", 0), params=kind.check_params({"where": where}))
    return asyncio.run(collector.collect([task], group_size=2, round=0))


@pytest.mark.parametrize("where", PLACES)
def test_exit_of_an_environment_is_its_failure(where: str) -> None:
    found = collected(where, exits=1)
    assert found.counts == {"env_errors": 1} and len(found.groups[0].trajectories) == 2


@pytest.mark.parametrize("where", PLACES)
def test_environment_that_always_exits_stops_the_run_with_an_error(where: str) -> None:
    with pytest.raises(Outage, match=r"Every episode failed.*SystemExit: 0"):
        collected(where, exits=100)


def _script() -> Any:
    rng = random.Random(0)
    return lambda env, said: env.random_answer(rng)


@pytest.mark.parametrize("where", [*PLACES, "random_answer"])
def test_warm_up_retries_an_environment_that_dies(where: str) -> None:
    kind = spec_of(Leaves)
    task = Task(env=kind.name, seed=seed_for("train", 0), params=kind.check_params({"where": where}))
    attempts: list[int] = []

    def make(*, attempt: int) -> Any:
        attempts.append(attempt)
        return kind.make(task, attempt=attempt)

    Leaves.left[:] = [0, 0]
    _, result = asyncio.run(play_demonstration(make, _script, attempts=4))
    assert result.success and attempts == [0, 1, 2], "with other luck each time"
    Leaves.left[:] = [0] * 100
    with pytest.raises(EnvironmentFailure, match="SystemExit"):
        asyncio.run(play_demonstration(make, _script, attempts=4))
    assert len(attempts) == 3 + 4


def leave(*_: Any) -> Any:
    sys.exit(0)


async def leave_later(*_: Any) -> Any:
    sys.exit(0)


def leaving_tool(text: str) -> str:
    """Ends the program."""
    sys.exit(0)


def test_exit_of_a_reward_does_not_end_the_run() -> None:
    answered = Submission(question="", answer="", row={})
    with pytest.raises(Outage, match=r"called sys\.exit"):
        rubric = build_rubric("a.py:f", lambda given: leave, RewardServices())
        asyncio.run(score_submission(rubric, answered))
    with pytest.raises(EnvironmentFailure, match="SystemExit"):
        asyncio.run(score_submission(Rubric(parts={"a": leave_later}, weights={"a": 1.0}), answered))


def test_exit_of_a_tool_or_a_summary_hook_is_infrastructure() -> None:
    async def called() -> None:
        async with ToolBox([from_function(leaving_tool)]).open(0) as tools:
            await tools.run("leaving_tool", {"text": "x"})

    with pytest.raises(InfrastructureFailure, match="SystemExit"):
        asyncio.run(called())
    for hook in (leave, leave_later):
        with pytest.raises(InfrastructureFailure, match="summary hook: SystemExit"):
            asyncio.run(_written(hook, [assistant("x")]))


def test_exit_of_an_environment_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(UserError, match="could not be loaded: SystemExit: 0"):
        import_file(tmp_path / "leaves.py")


@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError])
def test_ctrl_c_and_cancellation_pass(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(self: Any, action: str) -> Outcome:
        raise error

    monkeypatch.setattr(Leaves, "step", stop)
    with pytest.raises(error):
        collected("nowhere", exits=0)
