"""Tools that fail in a fifth of the calls: no episode is lost, duplicated or trained as a failure."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from turnwise.core.errors import InfrastructureFailure
from turnwise.core.protocols import Observation, Sampling
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Status
from turnwise.engine.scripted import ScriptedEngine
from turnwise.envs.registry import load_spec
from turnwise.envs.runner import TextEnvRunner
from turnwise.envs.seeds import seed_for
from turnwise.envs.spec import EnvSpec
from turnwise.envs.text_env import Outcome, lost, won
from turnwise.envs.tool_env import Style, ToolEnv
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.render.renderer import Renderer
from turnwise.rollout.collect import CollectedGroups, Collector
from turnwise.rollout.context import FullContext
from turnwise.rollout.episode import Limits
from turnwise.tools.function import from_function, tool
from turnwise.tools.tool import Tool
from turnwise.training.sft import play_demonstration, solver_script

FAULTS = random.Random(0)
RATE = [0.0]
BROKEN = [0]


@tool(retries=0)
async def double(number: int, state: "Doubling") -> int:
    """Twice the number."""
    if FAULTS.random() < RATE[0]:
        BROKEN[0] += 1
        raise ConnectionResetError("the server is gone")
    state.heard = 2 * number
    return 2 * number


class Doubling(ToolEnv):
    """Double it twice."""

    max_turns = 4

    class Params(ToolEnv.Params):
        style: Style = "answer"

    @classmethod
    def make_tools(cls, params: Any) -> Sequence[Tool]:
        return [from_function(double)]

    def tool_state(self) -> "Doubling":
        return self

    def reset(self, rng: random.Random) -> str:
        self.number, self.heard = rng.randint(1, 9), 0
        return str(self.number)

    def step(self, action: str) -> Outcome:
        return won() if action == str(4 * self.number) else lost()


def collect(rate: float) -> CollectedGroups:
    RATE[0], BROKEN[0] = rate, 0
    renderer, kind = Renderer(tiny_tokenizer()), EnvSpec(name="doubling", id="", cls=Doubling)
    envs: dict[tuple[int, int, int], Any] = {}

    def make(task: Task, member: int, attempt: int) -> Any:
        runner = kind.make(task, member, attempt)
        envs[task.seed, member, attempt] = runner.env
        return runner

    def script(key: EpisodeKey, turn: int, ids: list[int]) -> list[int]:
        env = envs[key.task.seed, key.member, key.attempt]
        call = f'<call>double {{"number": {env.heard or env.number}}}</call>'
        return renderer.answer(call if turn < 2 else f"<answer>{env.heard}</answer>")

    collector = Collector(
        policy=ScriptedEngine(script, list(renderer.stop_ids)),
        make_env=make,
        context=FullContext(renderer),
        limits=Limits(sampling=Sampling(max_tokens=500), max_tokens=5000, timeout_s=60.0),
        in_flight=16,
        attempts=30,
        run_seed=0,
    )
    tasks = [Task(env="doubling", seed=seed_for("train", number), params=kind.check_params({})) for number in range(12)]
    return asyncio.run(collector.collect(tasks, group_size=4, round=0))


def test_collect_with_faulty_tools_loses_no_member() -> None:
    without, with_faults = collect(0.0), collect(0.2)
    assert BROKEN[0] > 10
    for found in (without, with_faults):
        members = [(group.task.seed, each.member) for group in found.groups for each in group.trajectories]
        assert len(members) == len(set(members)) == 48
        assert {each.status for group in found.groups for each in group.trajectories} == {Status.SUCCEEDED}
        assert {len(each.turns) for group in found.groups for each in group.trajectories} == {3}
    said = [[[turn.action_ids for turn in each.turns] for each in group.trajectories] for group in without.groups]
    assert said == [
        [[turn.action_ids for turn in each.turns] for each in group.trajectories] for group in with_faults.groups
    ]


def test_demonstrations_are_retried_with_faulty_tools() -> None:
    made: list[TextEnvRunner] = []
    closed: list[TextEnvRunner] = []

    class Watched(TextEnvRunner):
        async def close(self) -> None:
            closed.append(self)

        async def start(self) -> Observation:
            made.append(self)
            if len(made) < 3:
                raise InfrastructureFailure("the server is gone")
            return await super().start()

    kind = load_spec("bandit")
    task = Task(env="bandit", seed=seed_for("train", 0), params=kind.check_params({}))

    def make(*, attempt: int) -> TextEnvRunner:
        return Watched(kind.make(task).env, random.Random(0))

    exchanges, result = asyncio.run(play_demonstration(make, lambda: solver_script(think=False), attempts=3))
    assert result.success and len(exchanges) == 1
    assert made == closed and len(made) == 3
