"""Supervised fine-tuning on demonstrations, and demonstrations by an environment's solver.

The loss is the negative log-likelihood of the answers: REINFORCE with an advantage of 1 on their tokens, so learner and
checkpoints are those of reinforcement learning.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch

from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.core.learner import Learner, Needs, StepSettings
from turnwise.core.messages import ToolSpec, assistant
from turnwise.core.protocols import EngineControl, StepResult
from turnwise.core.random_streams import address, random_stream
from turnwise.core.samples import Sample, TrainSample
from turnwise.core.task import Task
from turnwise.data.demonstrations import Exchange
from turnwise.data.packing import micro_batches, pack, pack_train
from turnwise.envs.seeds import SEEDS_PER_SPLIT, seed_for
from turnwise.envs.spec import EnvRunner, EnvSpec
from turnwise.envs.text_env import TextEnv
from turnwise.record.run_folder import RunFolder
from turnwise.report.progress import Progress
from turnwise.rewards.scoring import first_part_only
from turnwise.rollout.failures import MAX_DROPPED_SHARE, creation_boundary, run_with_retries
from turnwise.training.checkpoints import Checkpoints, State
from turnwise.training.skipped_steps import SkipMonitor
from turnwise.training.step_record import Evaluator, StepTimer, recorded_success
from turnwise.user_code.failures import failure_boundary


@dataclass(frozen=True, slots=True, kw_only=True)
class SftSettings:
    batch: int
    """Demonstrations per step."""
    epochs: int
    seed: int
    micro_tokens: int
    eval_every: int
    eval_tasks: Sequence[Task]
    """Empty without an environment: the loss of held-out samples is measured instead."""
    checkpoint_every: int
    keep_best: bool
    max_seconds: float | None


def count_steps(demonstrations: int, settings: SftSettings) -> int:
    return -(-demonstrations // settings.batch) * settings.epochs


def batch_indices(demonstrations: int, step: int, settings: SftSettings) -> list[int]:
    """Return the indices of the demonstrations of a step: each once per epoch, shuffled anew in each epoch."""
    epoch, batch = divmod(step, -(-demonstrations // settings.batch))
    order = list(range(demonstrations))
    random_stream("sft", settings.seed, epoch).shuffle(order)
    return order[batch * settings.batch : (batch + 1) * settings.batch]


class SftLoop:
    """Train from `state.step` on. Only the learner, its checkpoints and the run folder carry over between steps."""

    def __init__(
        self,
        *,
        settings: SftSettings,
        samples: Sequence[Sample],
        held_out: Sequence[Sample] = (),
        evaluator: Evaluator | None,
        learner: Learner,
        checkpoints: Checkpoints,
        folder: RunFolder,
        progress: Progress,
        engine: EngineControl | None,
        release_cache: bool = False,
    ) -> None:
        """`evaluator` and its `engine` are None without an environment.

        `release_cache`: free the engine's KV cache before each step, which needs the memory.
        """
        self.settings, self.samples, self.held_out = settings, samples, held_out
        self.engine, self.release_cache = engine, release_cache
        self.evaluator, self.learner, self.checkpoints = evaluator, learner, checkpoints
        self.folder, self.progress = folder, progress
        self.steps = count_steps(len(samples), settings)
        self._skips = SkipMonitor()

    async def run(self, state: State) -> State:
        """Train until the last step or the time limit. Saves a checkpoint at the end, and when cancelled (Ctrl-C)."""
        began, limit = time.perf_counter(), self.settings.max_seconds
        self.progress.begin(state.step, self.steps, self.folder.read_metrics())
        try:
            if self._evaluation_due(state.step):
                # The run stopped before this evaluation finished or its checkpoint was saved.
                state = await self._finish_step(state, recorded_success(self.folder, state.step))
            while state.step < self.steps and (limit is None or time.perf_counter() - began <= limit):
                if self.release_cache and self.engine is not None:
                    await self.engine.sleep()
                state = self._step(state)
                await asyncio.sleep(0)  # lets Ctrl-C cancel
                state = await self._finish_step(state)
        except asyncio.CancelledError:
            self.checkpoints.save(self.learner, state)
            raise
        self.checkpoints.save(self.learner, state)
        return state

    def _step(self, state: State) -> State:
        timer = StepTimer()
        self.learner.begin_step(StepSettings(step=state.step))
        chosen = [self.samples[number] for number in batch_indices(len(self.samples), state.step, self.settings)]
        loss, norm = train_on_demonstrations(self.learner, chosen, self.settings.micro_tokens)
        timer.lap("update")
        number, tokens = state.step + 1, sum(map(len, chosen))
        row: dict[str, Any] = {
            "step": number,
            "train/loss": loss,
            "train/grad_norm": norm,
            "train/demonstrations": float(len(chosen)),
            "train/answer_tokens": float(sum(int(sample.mask.sum()) for sample in chosen)),
            "train/skipped_steps": float(self.learner.skipped_steps),
            **timer.metrics(tokens),
        }
        self.folder.append_metrics(row)
        self.progress.step(state.step, row)
        advice = f"The loss was {loss:g}: lower train.learning_rate, or set model.dtype float32."
        self._skips.add(row, number, lambda: advice)
        return replace(state, step=number, skipped_steps=self.learner.skipped_steps)

    async def _finish_step(self, state: State, success: float | None = None) -> State:
        """Evaluate and save a checkpoint when they are due.

        `success`: validation success of this step, if already recorded before resuming.
        """
        settings, number = self.settings, state.step
        if self._evaluation_due(number):
            if success is None:
                success = await self.evaluate("validation", settings.eval_tasks, number)
            if settings.keep_best and success is not None and state.is_best(success):
                state = replace(state, best_success=success)
                self.checkpoints.save(self.learner, state, best=True)
        if number % settings.checkpoint_every == 0 and number < self.steps:
            self.checkpoints.save(self.learner, state)
        return state

    async def evaluate(self, name: str, tasks: Sequence[Task], number: int) -> float | None:
        """Measure success in the environment and return it. Without one, record the loss of the held-out samples."""
        if self.evaluator is None or self.engine is None:
            if self.held_out:
                loss = answer_loss(self.learner, self.held_out, self.settings.micro_tokens)
                self.folder.append_metrics({"step": number, f"held_out/{name}": loss})
                self.progress.note(f"step {number}: held-out loss {loss:.4g}")
            return None
        await self.engine.publish(number, self.learner.weights())
        return (await self.evaluator.evaluate(name, tasks, number)).success

    def _evaluation_due(self, number: int) -> bool:
        every = self.settings.eval_every
        return every > 0 and 0 < number < self.steps and number % every == 0


def train_on_demonstrations(learner: Learner, samples: Sequence[Sample], micro_tokens: int) -> tuple[float, float]:
    """Take an optimizer step; return the mean loss of the answers' tokens before it, and the gradient norm."""
    tokens = sum(int(sample.mask.sum()) for sample in samples)
    parts = micro_batches(samples, micro_tokens, learner.ranks)
    found = learner.forward_backward(
        pack_train([_train_sample(samples[index], tokens) for index in part]) for part in parts
    )
    total = sum(sums["policy_loss"] for sums in found)
    return float(total) / tokens, learner.step()["grad_norm"]


def answer_loss(learner: Learner, samples: Sequence[Sample], micro_tokens: int) -> float:
    """Return the mean loss of the answers' tokens, without training."""
    parts = micro_batches(samples, micro_tokens, learner.ranks)
    batches = [pack([samples[index] for index in part]) for part in parts]
    logprobs = [scores.logprobs for scores in learner.score(batches, Needs(logprobs=True))]
    return -float(torch.cat([each for each in logprobs if each is not None]).double().mean())


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


MAX_TRIES = 20
"""Maximum number of episodes per demonstration: those without success are left out."""
MAX_TURNS = 8
"""Turns after which a script stops in an environment that is not a TextEnv, and may have no limit of its own."""

Script = Callable[[EnvRunner, str], str]
"""(environment, last observation) -> answer."""


class AttemptEnvFactory(Protocol):
    def __call__(self, *, attempt: int) -> EnvRunner: ...


async def play_demonstration(
    make: AttemptEnvFactory, make_script: Callable[[], Script], *, attempts: int, max_turns: int | None = None
) -> tuple[list[Exchange], StepResult]:
    """Play an episode; return its exchanges and its last result. Failed attempts are retried, as in a rollout.

    `max_turns`: stop after as many turns, if the environment does not.
    """

    async def play(attempt: int) -> tuple[list[Exchange], StepResult]:
        with creation_boundary():
            env = make(attempt=attempt)
        try:
            return await _play_script(env, make_script(), max_turns)
        finally:
            await env.close()

    found = await run_with_retries(attempts, play)
    if isinstance(found, Exception):
        raise found
    return found


async def _play_script(env: EnvRunner, script: Script, max_turns: int | None) -> tuple[list[Exchange], StepResult]:
    limit = max_turns or (None if isinstance(env.env, TextEnv) else MAX_TURNS)

    def answer(observation: str) -> str:
        with failure_boundary(f"{type(env.env).__name__}'s solver or random answer"):
            return script(env, observation)

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
        if result.over or len(exchanges) == limit:
            return exchanges, result
        text = result.messages[-1].content if result.messages else ""
        exchanges.append(Exchange(messages=result.messages, answer=answer(text)))


async def opening_tools(environments: Sequence[tuple[EnvSpec, dict[str, Any]]]) -> tuple[ToolSpec, ...]:
    """Return the tools in the first observation of the environment; none for a mix of environments."""
    spec, params = environments[0]
    if len(environments) > 1:
        return ()
    env = spec.make(Task(env=spec.name, params=params, seed=seed_for("train", 0)))
    try:
        return tuple((await env.start()).tools)
    finally:
        await env.close()


def solver_script(think: bool) -> Script:
    """Return a script that plays the solver's next actions; `think`: with a true sentence about them first."""

    def answer(runner: EnvRunner, _: str) -> str:
        env = runner.env
        actions = env.solve() if isinstance(env, TextEnv) else None
        if not isinstance(env, TextEnv) or not actions:
            raise UserError(
                f"the solver of {type(env).__name__} found no actions: set sft.demos to a run or a JSONL file"
            )
        now = actions[: env.max_actions_per_turn]
        return env.reply(now, think=env.explain(now) if think else None)

    return answer


async def solve_demonstrations(
    environments: Sequence[tuple[EnvSpec, dict[str, Any]]],
    *,
    count: int,
    seed: int,
    think: bool,
    attempts: int,
    show: Callable[[int, int], None],
) -> list[list[Exchange]]:
    """Return `count` episodes of the training split in which the solver succeeded. Cycle through the environments.

    An episode that fails on all `attempts` is dropped and replaced; too many dropped ones raise the last failure.
    """
    found, dropped = list[list[Exchange]](), 0
    for number in range(MAX_TRIES * count):
        if len(found) == count:
            return found
        spec, params = environments[number % len(environments)]
        index = address("demonstration", seed, number) % SEEDS_PER_SPLIT
        task = Task(env=spec.name, params=params, seed=seed_for("train", index))
        try:
            with first_part_only():
                exchanges, result = await play_demonstration(
                    partial(spec.make, task), partial(solver_script, think), attempts=attempts
                )
        except (EnvironmentFailure, InfrastructureFailure):
            dropped += 1
            if dropped > MAX_DROPPED_SHARE * count:
                raise
            continue
        if result.success:
            found.append(exchanges)
        show(len(found), count)
    if not found:
        name = environments[0][0].name
        raise UserError(f"the solver of {name} never succeeded: set sft.demos to a run or a JSONL file")
    return found
