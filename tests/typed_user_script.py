"""A script of a user that uses the whole public API; mypy checks it strictly."""
# ruff: noqa: T201

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, assert_type

import torch

import turnwise as tw


class GuessNumber(tw.TextEnv):
    """I think of a number between 1 and 10."""

    max_turns = 4

    class Params(tw.StrictParams):
        largest: int = 10

    def reset(self, rng: random.Random) -> str:
        self.secret = rng.randint(1, self.params.largest)
        return "Guess my number."

    def step(self, action: str) -> tw.Outcome:
        guess = int(action)
        if guess == self.secret:
            return tw.won("Correct!")
        return tw.goes_on("higher") if guess < self.secret else tw.lost("too high")


class Maze:
    """An environment that follows the protocol itself: it builds its messages and reads the agent's whole reply."""

    class Params(tw.StrictParams):
        rooms: int = 3

    def __init__(self, task: tw.Task, rng: random.Random) -> None:
        self.rng = rng
        self.room = random.Random(task.seed).randrange(task.params["rooms"])

    async def start(self) -> tw.Observation:
        look = tw.ToolSpec(name="look", description="Look around.", parameters={"type": "object", "properties": {}})
        return tw.Observation(messages=(tw.system("Leave the maze."), tw.user("Which way?")), tools=(look,))

    async def step(self, action: tw.Message) -> tw.StepResult:
        left = "left" in action.content and self.rng.random() < 0.9
        answer = tw.Message(role="tool", parts=(tw.TextPart(text="a wall"),))
        picture = tw.Picture(rows=(("wall", "door"),))
        return tw.StepResult(messages=(answer,), reward=1.0 * left, terminated=left, success=left, picture=picture)

    async def close(self) -> None:
        return None


def make_maze(task: tw.Task, rng: random.Random) -> tw.Env:
    return Maze(task, rng)


@tw.tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    if not city:
        raise tw.ToolError("name a city")
    return "sunny"


class Questions(tw.ToolEnv):
    """Answer with the tools."""


def brevity(trajectory: Any) -> float:
    return 1.0 / (1 + len(trajectory.turns))


class Centred(tw.Advantage):
    """R - mean, times a factor."""

    needs_groups: ClassVar[bool] = True
    factor: float = 1.0
    """Factor of the advantages."""

    def compute(self, inputs: tw.AdvantageInputs) -> tw.AdvantageResult:
        returns = (inputs.token_rewards * inputs.mask).sum(1, keepdim=True)
        return tw.AdvantageResult(advantages=self.factor * (returns - returns.mean()).expand(inputs.mask.shape))


class Reinforce(tw.Loss):
    """-A log pi."""

    def compute(self, inputs: tw.LossInputs) -> tw.LossResult:
        return tw.LossResult(token_loss=-inputs.advantages * inputs.policy_logprobs, metrics={})


class Rarest(tw.SelectingLoss):
    """-A log pi on the tokens with the smallest probability."""

    def select(self, inputs: tw.LossInputs, draws: torch.Tensor) -> torch.Tensor:
        return inputs.policy_logprobs < inputs.policy_logprobs.median()

    def compute(self, inputs: tw.LossInputs) -> tw.LossResult:
        assert inputs.selected is not None
        return tw.LossResult(token_loss=-inputs.advantages * inputs.policy_logprobs * inputs.selected, metrics={})


class Preferred(tw.PairLoss):
    """-A log pi, by a factor of each group."""

    def weigh(self, inputs: tw.PairInputs) -> tw.PairResult:
        return tw.PairResult(factors=inputs.advantages.abs(), metrics={})

    def compute(self, inputs: tw.LossInputs) -> tw.LossResult:
        assert inputs.factors is not None
        return tw.LossResult(token_loss=-inputs.factors * inputs.policy_logprobs, metrics={})


class KeepVaried(tw.Filter):
    """Keep groups whose rewards differ."""

    def keeps(self, scores: torch.Tensor) -> torch.Tensor:
        return scores > 0


class Halved(tw.EstimatorSettings):
    """The advantages of algo.advantage, times a factor."""

    uses_advantage: ClassVar[bool] = True
    factor: float = 0.5

    def build(self, run: tw.RunParts) -> tw.Estimator[None]:
        return HalvedAdvantages(run.on_policy, self.factor)


class HalvedAdvantages(tw.Estimator[None], tw.Part):
    def __init__(self, on_policy: tw.Estimator[None], factor: float) -> None:
        self.on_policy, self.factor = on_policy, factor

    async def sample(self, rollout: tw.Rollout) -> None:
        return None

    def estimate(self, rollout: tw.Rollout, sampled: None, learner: Any) -> tw.Estimate | tw.IdleReason:
        estimate = self.on_policy.estimate(rollout, sampled, learner)
        if isinstance(estimate, tw.IdleReason):
            return estimate
        return replace(estimate, advantages=[self.factor * values for values in estimate.advantages])


class Half(tw.SourceSettings):
    """Train on the first half of the groups."""

    def build(self, run: tw.RunParts) -> tw.Source:
        return HalfOfGroups(run.source)


class HalfOfGroups:
    def __init__(self, source: tw.Source) -> None:
        self.source = source

    async def groups(self, step: int) -> tw.Rollout:
        rollout = await self.source.groups(step)
        return replace(rollout, kept=rollout.kept[: len(rollout.kept) // 2])


class Remote(tw.EngineSettings):
    """An engine with a setting of its own."""

    host: str = "localhost"

    def check(self) -> None:
        raise tw.UserError(f"{self.host} does not answer. Start it.")


class Brevity(tw.RewardFunction):
    """A penalty for each turn."""

    penalty: float = 0.1

    def score(self, trajectory: tw.Trajectory) -> list[float]:
        return [-self.penalty] * len(trajectory.turns)


def print_success(row: Mapping[str, Any]) -> None:
    print(row["rollout/success"])


def show(tool: tw.Tool) -> tw.ToolResult:
    print(tool.spec)
    return tw.ToolResult(text="shown", images=(tw.Image(b""),))


def main() -> None:
    try:
        warm = tw.sft("sokoban", demos="solver", count=100, epochs=1)
        run = tw.train(
            GuessNumber,
            model=warm,
            steps=50,
            seed=1,
            on_step=print_success,
            reward__functions=[brevity, Brevity(penalty=0.2)],
            rollout__source=Half,
            algo__estimator=Halved(factor=0.25),
            algo__advantage=Centred(factor=2.0),
            algo__loss=Reinforce,
            algo__filter=KeepVaried,
        )
    except (tw.UserError, tw.InfrastructureFailure) as error:
        print(error)
        return
    assert_type(run, tw.Run)
    tw.train(Maze, steps=1)
    tw.train(make_maze, steps=1)
    assert_type(run.path, Path)
    assert_type(run.summary, dict[str, Any])
    assert_type(run.metrics(), tw.Rows)
    assert_type(run.trajectories(step=3), tw.Rows)
    assert_type(run.trajectories(evaluation="before"), tw.Rows)
    assert_type(run.config, tw.Config)
    run.export("model")
    result = tw.evaluate([run, "tiny"], GuessNumber, episodes=64, tries=2)
    assert_type(result, tw.EvaluationResult)
    assert_type(result.success, float)
    assert_type(result.interval, tuple[float, float])
    again = tw.load_run("runs/first").evaluate(split="validation")
    trajectories: Sequence[object] = again.trajectories
    replayed = run.replay(step=3, group=0, member=1, all_turns=True, samples=8)
    assert_type(replayed, tw.ReplayResult)
    values: Sequence[tw.Branches] = replayed.branches
    print(replayed.equal, [branches.success for branches in values])
    observation, facts = tw.to_gymnasium(GuessNumber, split="test").reset(seed=3)
    assert_type(observation, str)
    print(len(trajectories), facts, tw.__version__)


async def ask(client: Any, task: Mapping[str, Any]) -> float | tw.Outcome:
    reply = await client.chat.completions.create(
        model="policy", messages=[{"role": "user", "content": task["question"]}]
    )
    text = str(reply.choices[0].message.content)
    return tw.won() if text == task["answer"] else 0.1 * len(text)


def score(task: Mapping[str, Any], result: tw.AgentResult) -> float:
    assert_type(result.trajectory, tw.Trajectory)
    return float(result.output.strip() == task["answer"])


class Relay(tw.RolesEnv):
    """Pass on the word."""

    roles = ("sender", "receiver")

    def begin(self, rng: random.Random) -> tw.RolesOutcome:
        self.word = rng.choice(("a", "b"))
        return tw.tell({"sender": self.word})

    def act(self, role: str, action: str) -> tw.RolesOutcome:
        if role == "sender":
            return tw.tell({"receiver": action})
        return tw.finish(rewards={"receiver": float(action == self.word)}, winners=self.roles)


async def train_agent() -> None:
    async with tw.Trainer(model="tiny", algo="grpo", quiet=True) as trainer:
        groups = await trainer.gather(ask, [{"question": "1 + 1", "answer": "2"}], group_size=4)
        assert_type(groups, list[tw.Group])
        assert_type(await trainer.step(groups), dict[str, Any])
        evaluation = await trainer.evaluate(ask, [{"question": "2 + 2", "answer": "4"}])
        assert_type(evaluation, tw.Evaluation)
        await trainer.client().chat.completions.create(model="policy", messages=[{"role": "user", "content": "Hi"}])
        print(trainer.save(), trainer.path, trainer.steps_done)


async def program() -> None:
    await train_agent()
    await asyncio.to_thread(main)
