"""Supervised fine-tuning on demonstrations, and demonstrations by an environment's solver.

The loss is the negative log-likelihood of the answers: REINFORCE with an advantage of 1 on their tokens, so learner and
checkpoints are those of reinforcement learning.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import torch

from turnwise.concurrency.blocking import EventLoopBlocked, allow_interrupts
from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.core.learner import Learner, Needs, StepSettings
from turnwise.core.messages import Exchange, assistant
from turnwise.core.protocols import EngineControl, Observation, StepResult
from turnwise.core.random_streams import address, random_stream
from turnwise.core.samples import Sample, TrainSample
from turnwise.core.task import Task
from turnwise.data.packing import micro_batches, pack, pack_train
from turnwise.envs.seeds import SEEDS_PER_SPLIT, seed_for
from turnwise.envs.spec import EnvRunner, EnvSpec
from turnwise.envs.text_env import TextEnv
from turnwise.record.rows import HeldOutRecord
from turnwise.record.run_folder import RunFolder
from turnwise.record.steps import EpisodeSource, StepRecord
from turnwise.report.progress import Progress
from turnwise.rewards.scoring import first_part_only
from turnwise.rollout.clock import EpisodeClock
from turnwise.rollout.failures import MAX_DROPPED_SHARE, creation_boundary, run_with_retries
from turnwise.text.truncation import describe_value
from turnwise.training.loop import LoopLimits, StepLoop
from turnwise.training.skipped_steps import SkipMonitor
from turnwise.training.step import Part
from turnwise.training.step_record import StepTimer
from turnwise.training.validation import Evaluator
from turnwise.user_code.source_location import failure_boundary


@dataclass(frozen=True, slots=True, kw_only=True)
class SftSettings:
    batch: int
    """Demonstrations per step."""
    epochs: int
    seed: int
    micro_tokens: int


def count_steps(demonstrations: int, settings: SftSettings) -> int:
    return -(-demonstrations // settings.batch) * settings.epochs


def batch_indices(demonstrations: int, step: int, settings: SftSettings) -> list[int]:
    """Return the indices of the demonstrations of a step: each once per epoch, shuffled anew in each epoch."""
    epoch, batch = divmod(step, -(-demonstrations // settings.batch))
    order = list(range(demonstrations))
    random_stream("sft", settings.seed, epoch).shuffle(order)
    return order[batch * settings.batch : (batch + 1) * settings.batch]


class SftLoop(StepLoop):
    def __init__(
        self,
        *,
        settings: SftSettings,
        samples: Sequence[Sample],
        learner: Learner,
        parts: Sequence[Part],
        seconds: float | None,
    ) -> None:
        """`seconds`: time limit; None: none."""
        limits = LoopLimits(steps=count_steps(len(samples), settings), seconds=seconds)
        super().__init__(learner=learner, parts=parts, limits=limits)
        self.settings, self.samples = settings, samples
        self._skips = SkipMonitor()

    async def take_step(self) -> None:
        for part in self.parts:
            await part.sampled()
        timer = StepTimer()
        self.learner.begin_step(StepSettings(step=self.step))
        chosen = [self.samples[number] for number in batch_indices(len(self.samples), self.step, self.settings)]
        self._between_steps = True
        loss, norm = train_on_demonstrations(self.learner, chosen, self.settings.micro_tokens)
        timer.lap("update")
        metrics = {
            "train/loss": loss,
            "train/grad_norm": norm,
            "train/demonstrations": float(len(chosen)),
            "train/answer_tokens": float(sum(int(sample.mask.sum()) for sample in chosen)),
            "train/skipped_steps": float(self.learner.skipped_steps),
            **timer.metrics(sum(map(len, chosen))),
        }
        record = StepRecord.of(self.step + 1, EpisodeSource.DEMONSTRATIONS, metrics)
        for part in self.parts:
            part.after(record)
        advice = f"The loss was {loss:g}: lower train.learning_rate, or set model.dtype float32."
        self._skips.add(metrics, record.step, lambda: advice)
        self.step, self._between_steps = record.step, False
        await asyncio.sleep(0)  # lets Ctrl-C cancel


@dataclass(frozen=True, slots=True, kw_only=True)
class SftEvaluator:
    """Measures success in the environment, or without one the loss of held-out samples."""

    learner: Learner
    engine: EngineControl | None
    evaluator: Evaluator | None
    """Both None without an environment."""
    held_out: Sequence[Sample]
    micro_tokens: int
    folder: RunFolder
    progress: Progress

    async def evaluate(self, name: str, tasks: Sequence[Task], step: int) -> float | None:
        """Return the success; without an environment, record the loss of the held-out samples and return None."""
        if self.evaluator is None or self.engine is None:
            if self.held_out:
                loss = answer_loss(self.learner, self.held_out, self.micro_tokens)
                self.folder.append_metrics(HeldOutRecord(step=step, losses={name: loss}))
                self.progress.note(f"step {step}: held-out loss {loss:.4g}")
            return None
        await self.engine.publish(step, self.learner.weights())
        return (await self.evaluator.evaluate(name, tasks, step)).success


def train_on_demonstrations(learner: Learner, samples: Sequence[Sample], micro_tokens: int) -> tuple[float, float]:
    """Take an optimizer step; return the mean loss of the answers' tokens before it, and the gradient norm."""
    tokens = sum(int(sample.mask.sum()) for sample in samples)
    parts = micro_batches(samples, micro_tokens, learner.ranks)
    losses = learner.forward_backward(
        pack_train([_train_sample(samples[index], tokens) for index in part]) for part in parts
    )
    total = sum(sums["policy_loss"] for sums in losses)
    return float(total) / tokens, learner.step()["grad_norm"]


def answer_loss(learner: Learner, samples: Sequence[Sample], micro_tokens: int) -> float:
    """Return the mean loss of the answers' tokens, without training."""
    parts = micro_batches(samples, micro_tokens, learner.ranks)
    batches = [pack([samples[index] for index in part]) for part in parts]
    policy_logprobs = [scores.policy_logprobs for scores in learner.score(batches, Needs(policy_logprobs=True))]
    return -float(
        torch.cat([policy_logprob for policy_logprob in policy_logprobs if policy_logprob is not None]).double().mean()
    )


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

Result = TypeVar("Result")
Script = Callable[[EnvRunner, str], str]
"""(environment, last observation) -> answer."""


class AttemptEnvFactory(Protocol):
    def __call__(self, *, attempt: int) -> EnvRunner: ...


async def play_demonstration(
    make: AttemptEnvFactory,
    make_script: Callable[[], Script],
    *,
    attempts: int,
    max_turns: int | None = None,
    timeout_s: float | None = None,
) -> tuple[list[Exchange], StepResult]:
    """Play an episode; return its exchanges and its last result. Failed attempts are retried, as in a rollout.

    `max_turns`: stop after as many turns, if the environment does not. `timeout_s`: an episode that takes longer raises
    UserError at once, since every retry would hang as long.
    """

    async def play(attempt: int) -> tuple[list[Exchange], StepResult]:
        with creation_boundary():
            env = make(attempt=attempt)
        try:
            played = _play_script(env, make_script(), max_turns)
            return await (played if timeout_s is None else _limit_time(played, timeout_s, type(env.env).__name__))
        finally:
            await env.close()

    result = await run_with_retries(attempts, play)
    if isinstance(result, Exception):
        raise result
    return result


@dataclass(frozen=True, slots=True)
class _NoSampling:
    """In place of a session: scripts do not sample."""

    sampling_s: float = 0.0


async def _limit_time(episode: Awaitable[Result], timeout_s: float, env_name: str) -> Result:
    """Await an episode. Raise UserError if its environment takes longer, also if it blocks the event loop."""
    clock = EpisodeClock(_NoSampling(), timeout_s, watched=env_name)
    try:
        with allow_interrupts():
            async with clock.limit():
                return await clock.run_outside(episode, "the environment")
    except TimeoutError as error:
        if clock.expired is None:
            raise
        raise UserError(str(clock.describe_timeout(error))) from error
    except InfrastructureFailure as failure:
        if isinstance(failure.__cause__, EventLoopBlocked):
            raise UserError(str(failure)) from failure
        raise


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


async def first_observation(environments: Sequence[tuple[EnvSpec, dict[str, Any]]]) -> Observation | None:
    """Return the first observation of an episode; None for a mix of environments, and without one."""
    if len(environments) != 1:
        return None
    ((spec, params),) = environments
    env = spec.make(Task(env=spec.name, params=params, seed=seed_for("train", 0)))
    try:
        return await env.start()
    finally:
        await env.close()


def solver_script(think: bool) -> Script:
    """Return a script that plays the solver's next actions; `think`: with a true sentence about them first."""

    def answer(runner: EnvRunner, _: str) -> str:
        env = runner.env
        actions = env.solve() if isinstance(env, TextEnv) else None
        if not isinstance(env, TextEnv) or not actions:
            raise UserError(
                f"The solver of {type(env).__name__} found no actions: set sft.demos to a run or a JSONL file."
            )
        if isinstance(actions, str) or not all(isinstance(action, str) for action in actions):
            raise UserError(f"{type(env).__name__}.solve returned {describe_value(actions)}: return a list of texts.")
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
    timeout_s: float | None = None,
) -> list[list[Exchange]]:
    """Return `count` episodes of the training split in which the solver succeeded. Cycle through the environments.

    An episode that fails on all `attempts` is dropped and replaced; too many dropped ones raise the last failure.
    `timeout_s`: time limit of an episode.
    """
    conversations, dropped = list[list[Exchange]](), 0
    for number in range(MAX_TRIES * count):
        if len(conversations) == count:
            return conversations
        spec, params = environments[number % len(environments)]
        index = address("demonstration", seed, number) % SEEDS_PER_SPLIT
        task = Task(env=spec.name, params=params, seed=seed_for("train", index))
        try:
            with first_part_only():
                exchanges, result = await play_demonstration(
                    partial(spec.make, task), partial(solver_script, think), attempts=attempts, timeout_s=timeout_s
                )
        except (EnvironmentFailure, InfrastructureFailure):
            dropped += 1
            if dropped > MAX_DROPPED_SHARE * count:
                raise
            continue
        if result.success:
            conversations.append(exchanges)
        show(len(conversations), count)
    if not conversations:
        name = environments[0][0].name
        raise UserError(f"The solver of {name} never succeeded: set sft.demos to a run or a JSONL file.")
    return conversations
