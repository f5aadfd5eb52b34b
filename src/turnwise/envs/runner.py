"""Run a `TextEnv` as a core `Env`: build the prompt, parse answers, run actions, enforce the limits."""

import logging
import random
from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from turnwise.core.errors import EnvironmentFailure, UserError
from turnwise.core.messages import Content, Message, Picture, content_parts, join_lines, system, user
from turnwise.core.protocols import Observation, StepResult
from turnwise.envs.answers import Answer, format_answer, invalid_action_line, match_name, read_answer
from turnwise.envs.param_setting import PARAMS_SETTING, params_in
from turnwise.envs.reasoning import describe_format
from turnwise.envs.seeds import split_of_state
from turnwise.envs.state_rewards import StateRewards
from turnwise.envs.text_env import Outcome, TextEnv, reasoning_format
from turnwise.rewards.functions import to_float
from turnwise.text.truncation import describe_value
from turnwise.user_code.source_location import describe_bug, failure_boundary, is_raised_by_user

log = logging.getLogger(__name__)

_reported: set[type[TextEnv]] = set()
"""Environments whose first such error was logged."""
MAX_RESETS = 1000
"""Start states that are drawn before the environment counts as too small for its split."""
_too_large: set[type[TextEnv]] = set()
"""Environments whose first HTML above MAX_HTML was logged."""
MAX_HTML = 100_000
"""Characters of a state's HTML, which is recorded with every turn."""
MAX_REWARD = 1e9
"""Larger rewards would overflow float32 when returns are summed and squared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutcome:
    """Outcome of all actions of one turn."""

    actions: tuple[str, ...] = ()
    reward: float = 0.0
    over: bool = False
    success: bool = False
    problem: str = ""
    """Why the turn is invalid; empty if it is valid."""
    ignored: int = 0
    """Number of actions beyond the limit per turn."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Reward components by name, summed over the actions."""

    def add_parts(self, parts: Mapping[str, float], reward: float) -> "TurnOutcome":
        """Return the outcome with further components, whose weighted sum is `reward`."""
        return replace(self, reward=self.reward + reward, parts={**self.parts, **parts})


class TextEnvRunner:
    """One episode of a `TextEnv`.

    `start_rng`: random stream of the start state; later randomness comes from the environment's `rng`.
    `seed`: seed of the group member, for subclasses with further random state.
    """

    params_setting: str = PARAMS_SETTING
    """Setting in which the user set the parameters."""
    takes_replies: bool = False
    """The agent's whole reply is the action, without answer tags."""

    def __init__(self, env: TextEnv, start_rng: random.Random, seed: int = 0) -> None:
        self.env = env
        self.luck = env.rng
        self._start_rng = start_rng
        self._observation: Content | None = None
        self._states = StateRewards(env)
        self._turns = 0
        self._actions = 0
        self._over = False

    async def start(self) -> Observation:
        if self._observation is not None:
            raise RuntimeError("environments are single use: make another one")
        with self._attribute_errors("reset"):
            self._observation = await self._reset()
        with self._attribute_errors("rules"):
            check_text(self.env, "rules", self.env.rules())
            messages = (system(system_prompt(self.env)), user(self._observation))
        return Observation(messages=messages, picture=self._draw())

    async def _reset(self) -> Content:
        """Reset until the start state is in the task's split, if start states are split."""
        for _ in range(MAX_RESETS):
            made = self.env.reset(self._start_rng)
            observation = self._check_content(await made if isinstance(made, Awaitable) else made, "reset")
            if not self.env.split_start_states or self.env.split in (None, split_of_state(self.env.start_key())):
                return observation
        raise UserError(
            f"The environment is too small to have a start state in the {self.env.split} split: make it larger."
        )

    async def step(self, action: Message) -> StepResult:
        if self._observation is None or self._over:
            raise RuntimeError("step before start, or after the end of the episode")
        state = self._state_key()
        before = self._states.observe(self._observation)
        turn = await self._run(self._read(action.content))
        after = self._states.observe(self._observation)
        scores = await self._states.score(action.content, before=before, after=after, acted=not turn.problem)
        turn = turn.add_parts(scores, self._states.reward(scores))
        self._turns += 1
        self._actions += len(turn.actions)
        truncated = not turn.over and bool(self._limit_reached())
        self._over = turn.over or truncated
        picture = self._draw()
        return StepResult(
            messages=(user(self._reply(turn)),),
            reward=turn.reward,
            terminated=turn.over,
            truncated=truncated,
            success=turn.success,
            invalid=bool(turn.problem),
            info=turn_info(turn, state),
            picture=picture,
        )

    async def close(self) -> None:
        """Nothing to release."""

    def _read(self, reply: str) -> Answer:
        """Parse a reply. Subclasses override it to accept other formats."""
        return read_answer(reply, several=self.env.max_actions_per_turn > 1)

    async def _run(self, answer: Answer) -> TurnOutcome:
        """Run actions until one ends the episode, is invalid, or reaches a limit. Earlier actions stay in effect."""
        if answer.problem:
            return TurnOutcome(problem=answer.problem, reward=self.env.invalid_reward)
        allowed = answer.actions[: self.env.max_actions_per_turn]
        ignored = len(answer.actions) - len(allowed)
        if self.env.max_actions is not None:
            allowed = allowed[: self.env.max_actions - self._actions]
        done: list[str] = []
        reward, parts = 0.0, Counter[str]()
        for action in allowed:
            try:
                outcome = await self._act(action)
            except ValueError as error:
                report_unraised(type(self.env), error)
                reward += self.env.invalid_reward
                problem = invalid_action_line(error)
                return TurnOutcome(actions=tuple(done), reward=reward, problem=problem, parts=parts)
            done.append(action)
            reward += outcome.reward
            parts.update(outcome.parts)
            self._observation = outcome.text
            if outcome.over:
                return TurnOutcome(actions=tuple(done), reward=reward, over=True, success=outcome.success, parts=parts)
        return TurnOutcome(actions=tuple(done), reward=reward, ignored=ignored, parts=parts)

    async def _judge(self, action: str) -> Outcome:
        """Return the outcome of an action. Subclasses override it to await something."""
        outcome = self.env.step(action)
        return await outcome if isinstance(outcome, Awaitable) else outcome

    async def _act(self, action: str) -> Outcome:
        """Run one action. ValueError passes through as an invalid action; other errors are the environment's."""
        names: Sequence[str] = self.env.action_names
        name = match_name(action, names) if names else action
        with self._attribute_errors("step", passing=(ValueError,)):
            outcome = await self._judge(name)
        if not isinstance(outcome, Outcome):
            raise EnvironmentFailure(
                f"{type(self.env).__name__}.step returned {describe_value(outcome)} for the action "
                f'"{name[:40]}": return goes_on(text), won(text) or lost(text)'
            )
        self._check_content(outcome.text, "step")
        reward = to_float(outcome.reward)
        if not abs(reward) <= MAX_REWARD:  # also catches NaN
            raise EnvironmentFailure(
                f"{type(self.env).__name__}.step returned {describe_value(outcome.reward)} as the reward: "
                f"return a number between -{MAX_REWARD:g} and {MAX_REWARD:g}"
            )
        if wrong := [name for name, value in outcome.parts.items() if not abs(to_float(value)) <= MAX_REWARD]:
            raise EnvironmentFailure(
                f"{type(self.env).__name__}.step returned {describe_value(outcome.parts[wrong[0]])} as the part "
                f"{wrong[0]!r} of the reward: return a number"
            )
        return outcome if type(outcome.reward) is float else replace(outcome, reward=reward)

    def _check_content(self, value: Content, where: str) -> Content:
        """Return the observation if it is text, images or both."""
        label = f"{type(self.env).__name__}.{where}"
        if value is None:
            raise EnvironmentFailure(f"{label} returned None instead of the observation's text: is its return missing?")
        try:
            content_parts(value)
        except TypeError as error:
            raise EnvironmentFailure(f"{label} returned {error}") from error
        return value

    def _state_key(self) -> str | None:
        with self._attribute_errors("state_key"):
            state = self.env.state_key()
            check_text(self.env, "state_key", state, optional=True)
        return state

    def _draw(self) -> Picture | None:
        with self._attribute_errors("draw"):
            picture = self.env.draw()
        if picture is not None and not isinstance(picture, Picture):
            raise EnvironmentFailure(
                f"{type(self.env).__name__}.draw returned {describe_value(picture)}: return a turnwise Picture, or None"
            )
        html = self._render_html()
        return replace(picture or Picture(rows=()), html=html) if html else picture

    def _render_html(self) -> str:
        """Return the state as HTML; "" without it, or if it is too large to record at every turn."""
        with self._attribute_errors("render_html"):
            html = self.env.render_html()
        check_text(self.env, "render_html", html, optional=True)
        if html is None or len(html) <= MAX_HTML:
            return html or ""
        if type(self.env) not in _too_large:
            _too_large.add(type(self.env))
            log.warning(
                "note: %s.render_html returned %d characters, and at most %d are recorded: return less",
                *(type(self.env).__name__, len(html), MAX_HTML),
            )
        return ""

    def random_answer(self, rng: random.Random) -> str | None:
        """Return a random legal reply; None if the environment has no random actions."""
        answer = self.env.random_answer(rng)
        check_text(self.env, "random_answer", answer, optional=True)
        return answer

    @property
    def turn_limit(self) -> int:
        """Largest number of turns of the episode."""
        return self.env.max_turns

    def _limit_reached(self) -> str:
        """Return the message of a reached limit; empty if none is."""
        if self.env.max_actions is not None and self._actions >= self.env.max_actions:
            return "No actions left."
        return "No turns left." if self._turns >= self.turn_limit else ""

    def _reply(self, turn: TurnOutcome) -> Content:
        """Build a short reply, since every token costs: the problem, if any, then the observation."""
        before = [turn.problem]
        if turn.ignored:
            before.append(f"Too many actions: {len(turn.actions)} ran.")
        after = "" if turn.over else self._limit_reached()
        return join_lines([*before, self._observation or "OK.", after])

    @contextmanager
    def _attribute_errors(self, where: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        boundary = failure_boundary(f"{type(self.env).__name__}.{where}", passing)
        with params_in(self.params_setting), boundary:
            yield


def report_unraised(env: type[TextEnv], error: ValueError) -> None:
    """Log the first ValueError of an environment that none of its own `raise` statements raised: it may be a bug."""
    if env in _reported or is_raised_by_user(error):
        return
    _reported.add(env)
    log.warning(
        "note: %s.step: %s counts as an invalid action, and the agent reads its text (reported once)",
        env.__name__,
        describe_bug(error),
    )


def check_text(env: object, where: str, value: Any, *, optional: bool = False) -> None:
    """Raise EnvironmentFailure if what a method of the environment returned is not a text."""
    if not isinstance(value, str) and not (optional and value is None):
        expected = "a text or None" if optional else "a text"
        raise EnvironmentFailure(f"{type(env).__name__}.{where} returned {describe_value(value)}: return {expected}")


def turn_info(turn: TurnOutcome, state: str | None) -> dict[str, Any]:
    """Return facts of the turn as JSON values. `state`: the state in which the model acted."""
    info: dict[str, Any] = {"actions": list(turn.actions), "success": turn.success}
    if turn.problem:
        info["problem"] = turn.problem
    if turn.ignored:
        info["ignored"] = turn.ignored
    if turn.parts:
        info["rewards"] = dict(turn.parts)
    if state is not None:
        info["state"] = state
    return info


def system_prompt(env: TextEnv) -> str:
    """Return the system message, the same for all episodes with the same parameters. Short, for tiny models."""
    lines = [env.rules()]
    if env.action_names and not shows_examples(env):
        lines.append(f"Actions: {', '.join(env.action_names)}.")
    lines += [limits_text(env), format_text(env)]
    return "\n".join(line for line in lines if line)


def limits_text(env: TextEnv) -> str:
    """State the limits per turn and per episode together, so that neither is mistaken for the other."""
    per_turn = (
        "1 action a turn" if env.max_actions_per_turn == 1 else f"At most {env.max_actions_per_turn} actions a turn"
    )
    total = pluralize(env.max_turns, "turn")
    if env.max_actions is not None:
        total += f" and {pluralize(env.max_actions, 'action')}"
    return f"{per_turn}; at most {total} in all."


def shows_examples(env: TextEnv) -> bool:
    return bool(getattr(env.params, "examples", False)) and reasoning_format(type(env), env.params) == "free"


def format_text(env: TextEnv) -> str:
    if shows_examples(env):
        answers = [format_answer([name]) for name in env.action_names]
        if env.max_actions_per_turn > 1:
            answers.append(format_answer([*env.action_names, *env.action_names][:2]))
        return f"Answer with {', '.join(answers[:-1])} or {answers[-1]}."
    example = format_answer(["action"] * min(env.max_actions_per_turn, 2))
    if (form := reasoning_format(type(env), env.params)) != "free":
        return describe_format(form, example, env.fact_example)
    return f"Answer: {example}. You may think first: <think>thoughts</think>."


def pluralize(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
