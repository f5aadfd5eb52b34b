"""Imitation: the loss is minus the log-probability of the demonstrations' answers, nothing else is trained.

That is REINFORCE with an advantage of 1 on every token of an answer, so the learner and its checkpoints are those of
reinforcement learning.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch

from turnwise.core.errors import UserError, failure_boundary
from turnwise.core.messages import ToolSpec, assistant
from turnwise.core.protocols import Engine, StepResult
from turnwise.core.random_streams import address, random_stream
from turnwise.core.samples import Learner, Sample, StepSettings, TrainSample
from turnwise.core.task import Task
from turnwise.data.demonstrations import Exchange
from turnwise.data.packing import micro_batches, pack_train
from turnwise.envs.runner import TextEnvRunner
from turnwise.envs.seeds import SEEDS_PER_SPLIT, seed_for
from turnwise.envs.spec import EnvSpec
from turnwise.envs.text_env import TextEnv
from turnwise.envs.tool_env import ToolEnv
from turnwise.evaluation.episodes import Evaluation
from turnwise.record.run_folder import RunFolder
from turnwise.report.progress import Progress
from turnwise.rewards.scoring import first_part_only
from turnwise.rollout.collect import Collector
from turnwise.rollout.failures import creation_boundary, run_with_retries
from turnwise.training.checkpoints import Checkpoints, State
from turnwise.training.step_record import StepTimer, evaluate_and_record, recorded_success


@dataclass(frozen=True, slots=True, kw_only=True)
class SftSettings:
    batch: int
    """Demonstrations a step."""
    epochs: int
    seed: int
    micro_tokens: int
    eval_every: int
    eval_tasks: Sequence[Task]
    checkpoint_every: int
    keep_best: bool
    max_seconds: float | None


def steps_of(demonstrations: int, settings: SftSettings) -> int:
    return -(-demonstrations // settings.batch) * settings.epochs


def batch_of(demonstrations: int, step: int, settings: SftSettings) -> list[int]:
    """Numbers of the demonstrations of a step: every one once an epoch, in an order of the epoch's own."""
    epoch, place = divmod(step, -(-demonstrations // settings.batch))
    order = list(range(demonstrations))
    random_stream("sft", settings.seed, epoch).shuffle(order)
    return order[place * settings.batch : (place + 1) * settings.batch]


class SftLoop:
    """Trains from `state.step` on. Nothing but the learner, its checkpoints and the run folder carries over a step."""

    def __init__(
        self,
        *,
        settings: SftSettings,
        samples: Sequence[Sample],
        evaluator: Collector,
        learner: Learner,
        checkpoints: Checkpoints,
        folder: RunFolder,
        progress: Progress,
        engine: Engine,
        release_cache: bool = False,
    ) -> None:
        """`engine`: the evaluator's; `release_cache`: free its KV cache before each step, which needs the memory."""
        self.settings, self.samples = settings, samples
        self.engine, self.release_cache = engine, release_cache
        self.evaluator, self.learner, self.checkpoints = evaluator, learner, checkpoints
        self.folder, self.progress = folder, progress
        self.steps = steps_of(len(samples), settings)

    async def run(self, state: State) -> State:
        """Returns where training stands: done, or out of time. Cancelled (Ctrl-C), it leaves a checkpoint first."""
        began, limit = time.perf_counter(), self.settings.max_seconds
        self.progress.begin(state.step, self.steps)
        try:
            if self._evaluation_due(state.step):  # stopped before it was done, or killed before it was acted on
                state = await self._between(state, recorded_success(self.folder, state.step))
            while state.step < self.steps and (limit is None or time.perf_counter() - began <= limit):
                if self.release_cache:
                    await self.engine.sleep()
                state = self._step(state)
                await asyncio.sleep(0)  # where Ctrl-C is heard
                state = await self._between(state)
        except asyncio.CancelledError:
            self.checkpoints.save(self.learner, state)
            raise
        self.checkpoints.save(self.learner, state)
        return state

    def _step(self, state: State) -> State:
        clock = StepTimer()
        self.learner.begin_step(StepSettings(step=state.step))
        chosen = [self.samples[number] for number in batch_of(len(self.samples), state.step, self.settings)]
        loss, norm = train_on_demonstrations(self.learner, chosen, self.settings.micro_tokens)
        clock.lap("update")
        number, tokens = state.step + 1, sum(map(len, chosen))
        row: dict[str, Any] = {
            "step": number,
            "train/loss": loss,
            "train/grad_norm": norm,
            "train/demonstrations": float(len(chosen)),
            "train/answer_tokens": float(sum(int(sample.mask.sum()) for sample in chosen)),
            "train/skipped_steps": float(self.learner.skipped_steps),
            **clock.metrics(tokens),
        }
        self.folder.append_metrics(row)
        self.progress.step(state.step, row)
        return replace(state, step=number, skipped_steps=self.learner.skipped_steps)

    async def _between(self, state: State, success: float | None = None) -> State:
        """Evaluate and checkpoint when it is time.

        `success`: of this step's validation, if it was recorded before the run was resumed.
        """
        settings, number = self.settings, state.step
        if self._evaluation_due(number):
            if success is None:
                success = (await self.evaluate("validation", settings.eval_tasks, number)).success
            if settings.keep_best and state.is_best(success):
                state = replace(state, best_success=success)
                self.checkpoints.save(self.learner, state, best=True)
        if number % settings.checkpoint_every == 0 and number < self.steps:
            self.checkpoints.save(self.learner, state)
        return state

    async def evaluate(self, name: str, tasks: Sequence[Task], number: int) -> Evaluation:
        await self.engine.publish(number, self.learner.weights())
        return await evaluate_and_record(self.evaluator, tasks, self.folder, self.progress, name=name, step=number)

    def _evaluation_due(self, number: int) -> bool:
        every = self.settings.eval_every
        return every > 0 and 0 < number < self.steps and number % every == 0


def train_on_demonstrations(learner: Learner, samples: Sequence[Sample], micro_tokens: int) -> tuple[float, float]:
    """One optimiser step. The mean loss of the answers' tokens before it, and the gradient's norm."""
    tokens = sum(int(sample.mask.sum()) for sample in samples)
    total: float | torch.Tensor = 0.0
    for part in micro_batches(samples, micro_tokens):
        sums = learner.forward_backward(pack_train([_train_sample(samples[index], tokens) for index in part]))
        total = total + sums["policy_loss"]
    return float(total) / tokens, learner.step()["grad_norm"]


def _train_sample(sample: Sample, tokens: int) -> TrainSample:
    ones = sample.mask.float()
    return TrainSample(
        sample=sample,
        old_logprobs=torch.zeros_like(ones),
        ref_logprobs=None,
        old_values=None,
        advantages=ones,
        returns=None,
        weights=ones / tokens,
        value_weights=None,
    )


ATTEMPTS = 10
"""At an episode that something breaks which is not the player."""
PATIENCE = 20
"""Tries for each success that is asked for, at most."""

Script = Callable[[TextEnv, str], str]
"""(the environment, what it said last) -> the answer."""


class MakeEnv(Protocol):
    def __call__(self, *, attempt: int) -> TextEnvRunner: ...


async def play_demonstration(make: MakeEnv, make_script: Callable[[], Script]) -> tuple[list[Exchange], StepResult]:
    """A whole episode, and how it ended. What broke is played again, as in a rollout."""

    async def play(luck: int) -> tuple[list[Exchange], StepResult]:
        with creation_boundary():
            env = make(attempt=luck)
        try:
            return await _episode(env, make_script())
        finally:
            await env.close()

    found = await run_with_retries(ATTEMPTS, play)
    if isinstance(found, Exception):
        raise found
    return found


async def _episode(env: TextEnvRunner, script: Script) -> tuple[list[Exchange], StepResult]:
    def answer(said: str) -> str:
        with failure_boundary("its solver or random answer"):
            return script(env.env, said)

    observation = await env.start()
    opening = Exchange(
        messages=observation.messages,
        answer=answer(observation.messages[-1].content),
        tools=observation.tools,
        tools_in_words=observation.tools_in_words,
    )
    exchanges = [opening]
    while True:
        result = await env.step(assistant(exchanges[-1].answer))
        if result.over:
            return exchanges, result
        exchanges.append(Exchange(messages=result.messages, answer=answer(result.messages[-1].content)))


async def opening_tools(worlds: Sequence[tuple[EnvSpec, dict[str, Any]]]) -> tuple[ToolSpec, ...]:
    """Those that an episode tells a model of at its opening; none where several environments have their own."""
    kind, params = worlds[0]
    if len(worlds) > 1 or not issubclass(kind.cls, ToolEnv):
        return ()
    env = kind.make(Task(env=kind.name, params=params, seed=seed_for("train", 0)))
    try:
        return tuple((await env.start()).tools)
    finally:
        await env.close()


def solution(think: bool) -> Script:
    """The solver's next actions, as many as a turn takes; `think`: with a true line about them before."""

    def answer(env: TextEnv, _: str) -> str:
        actions = env.solve()
        if not actions:
            raise UserError(
                f"{type(env).__name__} has no solver that finds a way: give sft.demos a run or a JSONL file"
            )
        now = actions[: env.max_actions_per_turn]
        return env.reply(now, think=env.explain(now) if think else None)

    return answer


async def solve_demonstration(
    worlds: Sequence[tuple[EnvSpec, dict[str, Any]]],
    *,
    count: int,
    seed: int,
    think: bool,
    show: Callable[[int, int], None],
) -> list[list[Exchange]]:
    """That many episodes of the training split in which the solver succeeded, as many tries of each environment."""
    found: list[list[Exchange]] = []
    for number in range(PATIENCE * count):
        if len(found) == count:
            return found
        kind, params = worlds[number % len(worlds)]
        index = address("demonstration", seed, number) % SEEDS_PER_SPLIT
        task = Task(env=kind.name, params=params, seed=seed_for("train", index))
        with first_part_only():
            exchanges, result = await play_demonstration(partial(kind.make, task), partial(solution, think))
        if result.success:
            found.append(exchanges)
        show(len(found), count)
    if not found:
        raise UserError(f"the solver of {worlds[0][0].name} never succeeded: give sft.demos a run or a JSONL file")
    return found
