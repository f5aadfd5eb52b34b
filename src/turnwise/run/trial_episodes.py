"""Try environments before a run trains: episodes of random answers, and the length of replies."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from turnwise.concurrency.blocking import allow_interrupts, blocking_limit, interruptible
from turnwise.config.schema import Config
from turnwise.core.errors import EnvironmentFailure, UserError
from turnwise.core.messages import Message, assistant
from turnwise.core.protocols import StepResult
from turnwise.core.random_streams import random_stream
from turnwise.core.task import Task
from turnwise.core.trajectory import Status, Stop, Trajectory, Turn
from turnwise.envs.answers import format_answer, random_word
from turnwise.envs.reasoning import format_reasoning
from turnwise.envs.rubric_env import RubricEnv
from turnwise.envs.runner import check_text
from turnwise.envs.seeds import seed_for
from turnwise.envs.spec import EnvRunner, EnvSpec
from turnwise.envs.text_env import TextEnv, env_docstring
from turnwise.rewards.functions import build_reward
from turnwise.rewards.judge.judges import skip_judges
from turnwise.rollout.failures import creation_boundary, run_with_retries
from turnwise.rollout.settings import RolloutConfig
from turnwise.run.environment_mix import EnvironmentMix, build_environment_mix, find_servers
from turnwise.user_code.references import IN_MEMORY
from turnwise.user_code.source_location import failure_boundary

if TYPE_CHECKING:  # most mistakes in environments are reported before torch and transformers are imported
    from transformers import PreTrainedTokenizerBase

EPISODES = 8
"""Trial episodes of an environment. The first is scored."""
ENOUGH_S = 5.0
"""Seconds after which no further trial episode begins, for slow environments."""
MAX_TURNS = 100
"""Turns of a trial episode, for environments that do not limit them."""

log = logging.getLogger(__name__)


class _TimeIsUp(Exception):
    """Trial episodes took longer than rollout.trial_s."""


def try_before_torch(config: Config, show: Callable[[str], None]) -> bool:
    """Try the environments of a new run. Return False if that has to wait: for servers, which are checked before, or
    since a run on stored episodes does not play.
    """
    environments = build_environment_mix(config.env, config.agent)
    if config.data.sources or not environments.entries or find_servers(environments.with_params):
        return False
    try_environments(config, environments, show)
    return True


def try_environments(config: Config, environments: EnvironmentMix, show: Callable[[str], None]) -> None:
    """Play a few episodes in each environment with code of the user's own, before a model is loaded.

    A bug in `reset`, `step` or a reward then shows within seconds, with file and line. Judges are not asked.
    `show` prints a line per environment.
    """
    limit = config.rollout.trial_s
    if environments.has_agent or not limit:
        return
    for spec, params in environments.with_params:
        is_own = ".py:" in spec.id or spec.id.startswith(IN_MEMORY) or spec.subclass_of(RubricEnv) is not None
        if not is_own and not config.reward.functions:
            continue
        show(f"{spec.name}: trying {EPISODES} episodes of random answers")
        try:
            asyncio.run(_try_environment(config, spec, params))
        except _TimeIsUp as error:
            log.warning(
                "note: the trial episodes of %s did not end within rollout.trial_s %g%s, so the run starts without "
                "them; --rollout.trial_s 0 skips them",
                spec.name,
                limit,
                f" ({error})" if str(error) else "",
            )


async def _try_environment(config: Config, spec: EnvSpec, params: dict[str, Any]) -> None:
    began = time.monotonic()

    async def play(number: int, attempt: int) -> tuple[Message, Trajectory]:
        left = max(began + config.rollout.trial_s - time.monotonic(), 0.0)
        blocking_limit.set(left)  # of tasks that the environment starts, such as those of its rewards
        try:
            async with asyncio.timeout(left):
                return await interruptible(_play(spec, params, config.seed, number, attempt), left, spec.name)
        except TimeoutError as error:
            raise _TimeIsUp(error) from error

    _check_rules(spec)
    starts: dict[int, Message] = {}
    failures: list[Exception] = []
    with skip_judges(), allow_interrupts():
        for number in range(EPISODES):
            known = len(failures)
            result = await run_with_retries(config.rollout.attempts, partial(play, number), failures.append)
            if isinstance(result, EnvironmentFailure):
                raise UserError(f"{result} (in a trial episode of random answers).") from result
            if failures and not known:
                log.warning("note: a trial episode of random answers failed: %s", failures[0])
            if isinstance(result, Exception):
                return
            start, trajectory = result
            for function in config.reward.functions if number == 0 else ():
                await build_reward(function)(trajectory)
            if trajectory.attempt == 0 and starts.setdefault(trajectory.task.seed, start) != start:
                log.warning(
                    "note: %s.reset gave two starts for one seed, so that the episodes of a group are different tasks: "
                    "draw random numbers from its argument rng, not from the module random",
                    spec.name,
                )
                return
            if time.monotonic() - began > ENOUGH_S:
                return


def _check_rules(spec: EnvSpec) -> None:
    cls = spec.cls
    if not isinstance(cls, type) or not issubclass(cls, TextEnv):
        return
    if cls.rules is TextEnv.rules and not env_docstring(cls):
        log.warning("note: %s has no docstring, which would be the start of the prompt: write its rules", spec.name)


async def _play(
    spec: EnvSpec, params: dict[str, Any], seed: int, number: int, attempt: int
) -> tuple[Message, Trajectory]:
    """Return the first observation and the episode. Each task is played twice."""
    task = Task(env=spec.name, params=params, seed=seed_for("train", number // 2))
    rng = random_stream("trial", seed, number, attempt)
    with creation_boundary():
        env = spec.make(task, 0, attempt)
    try:
        turns: list[Turn] = []
        start = (await env.start()).messages[-1]
        text = start.content
        while True:
            reply = _random_reply(env, rng, text)
            result = await env.step(assistant(reply))
            turns.append(_turn(reply, result))
            if result.over or len(turns) == MAX_TURNS:
                break
            text = result.messages[-1].content if result.messages else ""
    finally:
        await env.close()
    status = result.status if result.over else Status.TRUNCATED_TIME
    rewards = tuple(turn.reward for turn in turns)
    return start, Trajectory(
        task=task, member=0, attempt=attempt, turns=tuple(turns), status=status, turn_rewards=rewards
    )


def _random_reply(runner: EnvRunner, rng: random.Random, observation: str) -> str:
    """Return a random answer. Calls of tools that the environment does not suggest itself might have side effects."""
    with failure_boundary(f"{type(runner.env).__name__}.random_answer"):
        suggest = getattr(runner.env, "random_answer", None)
        answer = suggest(rng) if suggest is not None else None
    check_text(runner.env, "random_answer", answer, optional=True)
    return answer or random_word(rng, observation)


def _turn(reply: str, result: StepResult) -> Turn:
    """Return a turn whose token ids are the bytes of the reply: the tokenizer is loaded later."""
    ids = tuple(reply.encode())
    return Turn(
        context_ids=(0,),
        extends=True,
        action_ids=ids,
        action_logprobs=(-1.0,) * len(ids),
        temperature=1.0,
        spans=(),
        message=assistant(reply),
        stop=Stop.EOS,
        reward=result.reward,
        invalid=result.invalid,
        info=result.info,
        picture=result.picture,
    )


def check_replies_fit(
    rollout: RolloutConfig, environments: EnvironmentMix, tokenizer: "PreTrainedTokenizerBase"
) -> None:
    """Raise UserError if rollout.max_new_tokens cuts the answer with an action or a reply that describes states."""
    for spec, params in environments.with_params:
        _check_actions_fit(rollout, spec, tokenizer)
        if not rollout.prefix:  # a prefix may have sections, and is not sampled
            _check_descriptions_fit(rollout, spec, params, tokenizer)


def _check_actions_fit(rollout: RolloutConfig, spec: EnvSpec, tokenizer: "PreTrainedTokenizerBase") -> None:
    for name in _action_names(spec):
        answer = f'the answer with the action "{name}" of {spec.name}'
        _check_fits(rollout, [format_answer([name])], tokenizer, answer, ", or shorten the name")


def _check_descriptions_fit(
    rollout: RolloutConfig, spec: EnvSpec, params: dict[str, Any], tokenizer: "PreTrainedTokenizerBase"
) -> None:
    form = spec.reasoning_format(params)
    if form == "free":
        return
    actions, states = _action_names(spec)[:1], asyncio.run(_start_states(spec, params))
    replies = [format_answer(actions, format_reasoning(form, "", state, state)) for state in states]
    empty = "" if any(states) else " with empty sections"
    _check_fits(rollout, replies, tokenizer, f"{spec.params_setting}.reasoning {form}: a reply of {spec.name}{empty}")


def _check_fits(
    rollout: RolloutConfig,
    replies: Sequence[str],
    tokenizer: "PreTrainedTokenizerBase",
    about: str,
    alternative: str = "",
) -> None:
    limit = rollout.max_new_tokens
    length = max(len(tokenizer(reply)["input_ids"]) for reply in replies) + 1  # and the token that ends the turn
    if length > limit:
        raise UserError(
            f"{about} has {length} tokens, and rollout.max_new_tokens is {limit}: set it to {length} or "
            f"more{alternative}"
        )


def _action_names(spec: EnvSpec) -> Sequence[str]:
    names = () if spec.text_env is None else spec.text_env.action_names
    return names if isinstance(names, tuple | list) else ()  # a property is known only in an episode


async def _start_states(spec: EnvSpec, params: dict[str, Any]) -> list[str]:
    """Return the states of a few tasks, as replies describe them; one empty state if they are not known."""
    if spec.text_env is None or not spec.text_env.knows_state():
        return [""]
    states = []
    for number in range(EPISODES):
        with creation_boundary():
            runner = spec.make(Task(env=spec.name, params=params, seed=seed_for("train", number)))
        try:
            await runner.start()
            states.append(runner.env.state_text() or "" if isinstance(runner.env, TextEnv) else "")
        finally:
            await runner.close()
    return states
