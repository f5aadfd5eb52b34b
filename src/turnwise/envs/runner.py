"""Runs a `TextEnv` as the core's `Env`: reads answers, runs actions one by one, keeps the limits."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from turnwise.core.errors import FOREIGN_ERRORS, EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.core.messages import Message, Picture, system, user
from turnwise.core.protocols import Observation, StepResult
from turnwise.envs.answers import Answer, format_answer, match_name, read_answer
from turnwise.envs.seeds import split_of_state
from turnwise.envs.text_env import Outcome, TextEnv
from turnwise.rewards.functions import describe_value, to_float

MAX_RESETS = 1000
"""Start states that are drawn before a world counts as too small."""
MAX_REWARD = 1e9
"""Larger ones would overflow where returns are summed and squared in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutcome:
    """What the actions of one turn came to."""

    actions: tuple[str, ...] = ()
    reward: float = 0.0
    over: bool = False
    success: bool = False
    problem: str = ""
    """Why the turn is invalid; empty if it is not."""
    ignored: int = 0
    """Actions beyond the limit of a turn."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Of the reward, where the environment names them."""


class TextEnvRunner:
    """One episode of a `TextEnv`. `start_rng` is the stream of the start state; the later one is the env's `rng`.

    `seed`: the member's own, for runners that hold more than the environment.
    """

    def __init__(self, env: TextEnv, start_rng: random.Random, seed: int = 0) -> None:
        self.env = env
        self._start_rng = start_rng
        self._observation: str | None = None
        self._turns = 0
        self._actions = 0
        self._over = False

    async def start(self) -> Observation:
        if self._observation is not None:
            raise RuntimeError("an environment is single use: make another one")
        with self._attributed("reset"):
            self._observation = self._reset()
        with self._attributed("its prompt"):
            messages = (system(system_prompt(self.env)), user(self._observation))
        return Observation(messages=messages, picture=self._draw())

    def _reset(self) -> str:
        """A start state of the task's split, where states have one."""
        for _ in range(MAX_RESETS):
            observation = _text(self.env.reset(self._start_rng), "reset")
            if not self.env.split_start_states or self.env.split in (None, split_of_state(self.env.start_key())):
                return observation
        raise UserError(f"so small a world has no start state for the {self.env.split} split: make it larger")

    async def step(self, action: Message) -> StepResult:
        if self._observation is None or self._over:
            raise RuntimeError("step before start, or after the end of the episode")
        with self._attributed("state_key"):
            state = self.env.state_key()
        answer = read_answer(action.content, several=self.env.max_actions_per_turn > 1)
        ran = await self._run(answer)
        self._turns += 1
        self._actions += len(ran.actions)
        truncated = not ran.over and bool(self._limit_reached())
        self._over = ran.over or truncated
        picture = self._draw()
        return StepResult(
            messages=(user(self._reply(ran)),),
            reward=ran.reward,
            terminated=ran.over,
            truncated=truncated,
            success=ran.success,
            invalid=bool(ran.problem),
            info=turn_info(ran, state),
            picture=picture,
        )

    async def close(self) -> None:
        """A TextEnv holds nothing that would have to be given back."""

    async def _run(self, answer: Answer) -> TurnOutcome:
        """Runs the actions until one ends the episode, is invalid, or a limit is reached; earlier ones stand."""
        if answer.problem:
            return TurnOutcome(problem=answer.problem, reward=self.env.invalid_reward)
        allowed = answer.actions[: self.env.max_actions_per_turn]
        ignored = len(answer.actions) - len(allowed)
        if self.env.max_actions is not None:
            allowed = allowed[: self.env.max_actions - self._actions]
        done: list[str] = []
        reward = 0.0
        for action in allowed:
            try:
                outcome = await self._act(action)
            except ValueError:
                reward += self.env.invalid_reward
                return TurnOutcome(actions=tuple(done), reward=reward, problem="Invalid action.")
            done.append(action)
            reward += outcome.reward
            self._observation = outcome.text
            if outcome.over:
                return TurnOutcome(
                    actions=tuple(done), reward=reward, over=True, success=outcome.success, parts=outcome.parts
                )
        return TurnOutcome(actions=tuple(done), reward=reward, ignored=ignored)

    async def _judge(self, action: str) -> Outcome:
        """What an action leads to; for runners whose environments wait for something before they can say."""
        return self.env.step(action)

    async def _act(self, action: str) -> Outcome:
        """One action. A ValueError passes through: the action is invalid. Anything else is the environment's fault."""
        names: Sequence[str] = self.env.action_names
        name = match_name(action, names) if names else action
        with self._attributed("step", passing=(ValueError,)):
            outcome = await self._judge(name)
        if not isinstance(outcome, Outcome):
            raise EnvironmentFailure(
                f"{type(self.env).__name__}.step returned {type(outcome).__name__}: return won, lost or goes_on"
            )
        _text(outcome.text, "step")
        reward = to_float(outcome.reward)
        if not abs(reward) <= MAX_REWARD:  # NaN is not
            raise EnvironmentFailure(
                f"{type(self.env).__name__}.step gave the reward {describe_value(outcome.reward)}: "
                f"return a number between -{MAX_REWARD:g} and {MAX_REWARD:g}"
            )
        return outcome if type(outcome.reward) is float else replace(outcome, reward=reward)

    def _draw(self) -> Picture | None:
        with self._attributed("draw"):
            picture = self.env.draw()
        if picture is not None and not isinstance(picture, Picture):
            raise EnvironmentFailure(
                f"{type(self.env).__name__}.draw returned {describe_value(picture)}: return a turnwise Picture, or None"
            )
        return picture

    def _limit_reached(self) -> str:
        """Which of the limits that the prompt states was reached; empty if none."""
        if self.env.max_actions is not None and self._actions >= self.env.max_actions:
            return "No actions left."
        return "No turns left." if self._turns >= self.env.max_turns else ""

    def _reply(self, ran: TurnOutcome) -> str:
        """Short, since every token of it is paid for: what was wrong, if anything was, then the observation."""
        lines = [ran.problem]
        if ran.ignored:
            lines.append(f"Too many actions: {len(ran.actions)} ran.")
        lines.append(self._observation or "OK.")
        if not ran.over:
            lines.append(self._limit_reached())
        return "\n".join(line for line in lines if line)

    @contextmanager
    def _attributed(self, where: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Failures of the environment's own code are typed here, once: the member is run again, not rewarded 0."""
        typed: tuple[type[Exception], ...] = (UserError, EnvironmentFailure, InfrastructureFailure, *passing)
        try:
            yield
        except typed:
            raise
        except FOREIGN_ERRORS as error:
            name = type(self.env).__name__
            raise EnvironmentFailure(f"{name}, {where}: {type(error).__name__}: {error}") from error


def _text(value: str, where: str) -> str:
    if not isinstance(value, str):
        raise EnvironmentFailure(f"{where} gave {type(value).__name__} where the observation's text belongs")
    return value


def turn_info(ran: TurnOutcome, state: str | None) -> dict[str, Any]:
    """Facts of the turn as plain JSON values. `state` is the state in which the model acted."""
    info: dict[str, Any] = {"actions": list(ran.actions), "success": ran.success}
    if ran.problem:
        info["problem"] = ran.problem
    if ran.ignored:
        info["ignored"] = ran.ignored
    if ran.parts:
        info["rewards"] = dict(ran.parts)
    if state is not None:
        info["state"] = state
    return info


def system_prompt(env: TextEnv) -> str:
    """Equal for all episodes of equal parameters. Terse: a model of under a million parameters reads it on a CPU."""
    lines = [env.rules()]
    if env.action_names and not shows_examples(env):
        lines.append(f"Actions: {', '.join(env.action_names)}.")
    lines += [limits_text(env), format_text(env)]
    return "\n".join(line for line in lines if line)


def limits_text(env: TextEnv) -> str:
    """Both kinds of limit, a turn's and the episode's, so that neither is taken for the other."""
    a_turn = (
        "1 action a turn" if env.max_actions_per_turn == 1 else f"At most {env.max_actions_per_turn} actions a turn"
    )
    total = pluralize(env.max_turns, "turn")
    if env.max_actions is not None:
        total += f" and {pluralize(env.max_actions, 'action')}"
    return f"{a_turn}; at most {total} in all."


def shows_examples(env: TextEnv) -> bool:
    return bool(getattr(env.params, "examples", False))


def format_text(env: TextEnv) -> str:
    if shows_examples(env):
        answers = [format_answer([name]) for name in env.action_names]
        if env.max_actions_per_turn > 1:
            answers.append(format_answer([*env.action_names, *env.action_names][:2]))
        return f"Answer with {', '.join(answers[:-1])} or {answers[-1]}."
    example = format_answer(["action"] * min(env.max_actions_per_turn, 2))
    return f"Answer: {example}. You may think first: <think>thoughts</think>."


def pluralize(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
