"""TextEnv: write an environment with strings in and strings out; `reset` and `step` may be async.

    class GuessNumber(TextEnv):
        \"\"\"I think of a number between 1 and 100.\"\"\"
        max_turns = 7
        def reset(self, rng): self.secret = rng.randint(1, 100); return "Guess my number (1-100)."
        def step(self, action):
            guess = int(action)                     # ValueError -> invalid action; the agent reads its text
            if guess == self.secret: return won("Correct!")
            return goes_on("higher" if guess < self.secret else "lower")

`runner.TextEnvRunner` runs an instance as a core `Env`.
"""

import copy
import inspect
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from turnwise.core.errors import EnvironmentFailure, UserError
from turnwise.core.messages import Content, Picture
from turnwise.core.random_streams import random_stream
from turnwise.core.task import Split
from turnwise.envs.answers import format_answer
from turnwise.envs.param_setting import param_setting
from turnwise.envs.reasoning import SECTIONS, ReasoningFormat, format_reasoning

if TYPE_CHECKING:
    from turnwise.rewards.judge.judges import StateJudge
    from turnwise.rewards.services import RewardServices
    from turnwise.tools.tool import NeedsServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of one action, or of an agent's whole run. Created by `won`, `lost` and `goes_on`."""

    text: Content = ""
    """New observation: text, a `tw.Image`, or several of both. After several actions the model sees the last one."""
    reward: float
    """Reward of the action or the run."""
    over: bool = True
    """True if the episode ends."""
    success: bool
    """True if the episode ends with success."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Unweighted reward components by name; recorded under these names."""


def won(text: Content = "", reward: float = 1.0) -> Outcome:
    """End the episode with success."""
    return Outcome(text=text, reward=reward, over=True, success=True)


def lost(text: Content = "", reward: float = 0.0) -> Outcome:
    """End the episode without success."""
    return Outcome(text=text, reward=reward, over=True, success=False)


def goes_on(text: Content = "", reward: float = 0.0) -> Outcome:
    """Continue the episode."""
    return Outcome(text=text, reward=reward, over=False, success=False)


class StrictParams(BaseModel):
    """Frozen parameters that reject unknown names."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def check_range(low: str, high: str) -> Any:
    """Return a validator for a class of parameters: the field `low` must not be above the field `high`."""

    def validate(params: StrictParams) -> StrictParams:
        least, most = getattr(params, low), getattr(params, high)
        if least > most:
            raise ValueError(f"{low} {least} is above {high} {most}: lower it")
        return params

    return model_validator(mode="after")(validate)


class TextEnv(ABC):
    """Rules of an environment. A subclass's docstring starts the prompt; its first line is shown in lists."""

    max_turns: int = 10
    """Maximum number of model replies per episode. All three limits can be set in `env.params`."""
    max_actions_per_turn: int = 1
    """Maximum number of actions in one reply."""
    max_actions: int | None = None
    """Maximum number of actions per episode; None: as many as the turns allow."""
    action_names: tuple[str, ...] = ()
    """Fixed list of actions, if there is one: the prompt lists them, and others are invalid before `step`."""
    fully_observable: bool = False
    """Each observation shows all that matters, so without a recipe the tiny models see no earlier turns by default."""
    needs: Mapping[str, str] = MappingProxyType({})
    """Optional dependencies: module -> package to install."""

    class Params(StrictParams):
        """The environment's own parameters, available as `self.params`."""

    view_params: ClassVar[tuple[str, ...]] = ("reasoning", "grounding_reward", "prediction_reward", "state_judge")
    """Parameters of how a task is shown and answered, not of the task: random streams do not depend on them. Values
    equal to the defaults are left out of tasks."""
    fact_example: ClassVar[str] = ""
    """Example of a fact of `state_text`, for the prompt."""
    runner: ClassVar[Any] = None
    """Subclass of TextEnvRunner that runs the episodes; None for TextEnvRunner itself."""
    params: Any
    """Parameters of the task: an instance of `Params` with the three limits."""
    rng: random.Random
    """Random stream for everything after `reset`; each member of a group has its own."""
    split_start_states: bool = False
    """Assign each start state to one split by `start_key()`; `reset` is called until the state is in the task's split.

    For environments with so few start states that different seeds would repeat them across splits."""
    index: int = 0
    """Index of the task in its split, for environments with a fixed number of tasks."""
    services: "RewardServices | None" = None
    """Judges of the run, for environments whose answers or states a judge scores."""
    split: Split | None = None
    """Split of the task, for environments whose splits differ in more than seeds; None without a task."""

    def __init__(self, params: Mapping[str, Any] | None = None, rng: random.Random | None = None) -> None:
        self.params = params_model(type(self)).model_validate(dict(params or {}))
        self.rng = random_stream("luck") if rng is None else rng
        self.max_turns = self.params.max_turns
        self.max_actions_per_turn = self.params.max_actions_per_turn
        self.max_actions = self.params.max_actions

    @classmethod
    def check(cls, params: Any) -> None:
        """Raise UserError for valid parameters that cannot work, such as a missing file. Called once, before a run."""
        return

    @classmethod
    def size(cls, params: Any, split: Split) -> int | None:
        """Return the number of tasks of a split; None if it is unlimited."""
        return None

    @classmethod
    def episode_roles(cls, params: Any) -> tuple[str, ...]:
        """Return the roles with episodes of their own; none for an environment of one agent."""
        return ()

    @classmethod
    def shows_images(cls, params: Any) -> bool:
        """Return whether observations contain images, as far as that is known before an episode."""
        return False

    @classmethod
    def image_params(cls, pixels: int) -> dict[str, Any]:
        """Return parameters of the size of images that suit a model whose image tokens show `pixels` x `pixels`."""
        return {}

    @classmethod
    def stream_params(cls, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters on which random streams depend."""
        return {name: value for name, value in params.items() if name not in (*PROMPT_PARAMS, *cls.view_params)}

    @classmethod
    def common_params(cls) -> dict[str, Any]:
        """Return the parameters that are added to `Params` unless it has them, as arguments of `create_model`."""
        limits: dict[str, Any] = {
            "max_turns": (int, Field(cls.max_turns, ge=1, description="Maximum number of turns per episode.")),
            "max_actions_per_turn": (
                int,
                Field(cls.max_actions_per_turn, ge=1, description="Maximum number of actions per turn."),
            ),
            "max_actions": (
                int | None,
                Field(cls.max_actions, ge=1, description="Maximum number of actions per episode."),
            ),
        }
        if cls.action_names:
            description = "Show each action as a complete answer in the prompt, for small models that mostly copy."
            limits["examples"] = (bool, Field(False, description=description))
        return limits | reasoning_params(knows_state=cls.knows_state())

    @classmethod
    def knows_state(cls) -> bool:
        """Return whether the environment defines `state_text`."""
        return cls.state_text is not TextEnv.state_text

    @classmethod
    def state_judge(cls, params: Any, services: "RewardServices | None" = None) -> "StateJudge | None":
        """Build the judge of described states; None if they are scored exactly, or if replies describe none.

        Raises UserError if it is missing, has no effect, or has wrong settings.
        """
        form = reasoning_format(cls, params)
        if cls.knows_state() or "state_judge" not in params_model(cls).model_fields:
            return None
        if form == "free" and params.state_judge is not None:
            raise UserError(
                f"{param_setting('state_judge')} has no effect: it scores the states that replies describe, and "
                f"{param_setting('reasoning')} is free."
            )
        if form == "free":
            return None
        if params.state_judge is None:
            raise UserError(
                f"{param_setting('reasoning')} {form}: {cls.__name__} has no state_text() to compare descriptions "
                f"with. Define it, or name a judge: --{param_setting('state_judge')} '{{model = \"gpt-5-mini\"}}'."
            )
        from turnwise.rewards.factory import build_state_judge

        return build_state_judge(params.state_judge, services, setting=param_setting("state_judge"))

    @classmethod
    def judges(cls, params: Any, services: "RewardServices | None" = None) -> "list[NeedsServer]":
        """Build the judges that score episodes, with the budgets of `services`, or with their own."""
        judge = cls.state_judge(params, services)
        return [] if judge is None else [judge.client]

    @abstractmethod
    def reset(self, rng: random.Random) -> Content | Awaitable[Content]:
        """Create the start state from this random stream; return the first observation. May be async.

        An observation is a text, a `tw.Image`, or a list of both.
        """

    @abstractmethod
    def step(self, action: str) -> Outcome | Awaitable[Outcome]:
        """Run one action. May be async.

        Raise ValueError for an illegal action, leaving the state unchanged. The agent reads the error's text.
        """

    def rules(self) -> str:
        """Return the start of the prompt. It must be the same for all episodes with the same parameters."""
        return env_docstring(type(self))

    def random_action(self, rng: random.Random) -> str | None:
        """Return a legal action, for warm-up and fuzzing; None if the environment cannot tell."""
        return rng.choice(self.action_names) if self.action_names else None

    def solve(self) -> list[str] | None:
        """Return actions that lead from the current state to success; None without a solver or a solution."""
        return None

    def explain(self, actions: Sequence[str]) -> str:
        """Explain these actions in one line, for demonstrations."""
        return f"Next: {', '.join(actions)}."

    def reply(self, actions: Sequence[str], think: str | None = None) -> str:
        """Return a whole assistant reply with these actions, for demonstrations. Call it before they run.

        Its sections are empty if the state is not known.
        """
        form = reasoning_format(type(self), self.params)
        if form == "free":
            return format_answer(actions, think)
        predicts = "prediction" in SECTIONS[form] and type(self).knows_state()
        prediction = self._predict(actions) if predicts else ""
        return format_answer(actions, format_reasoning(form, think or "", self.state_text() or "", prediction))

    def _predict(self, actions: Sequence[str]) -> str:
        """Return the state after these actions, which run in a copy of the environment until one ends the episode."""
        after = copy.deepcopy(self)
        for action in actions:
            try:
                outcome = after.step(action)
            except ValueError:  # an illegal action: it and those after it do not run
                break
            if isinstance(outcome, Awaitable):
                raise UserError(f"{type(self).__name__}.step is async, so no demonstration can predict a state.")
            if outcome.over:
                break
        return after.state_text() or ""

    def draw(self) -> Picture | None:
        """Draw the current state for humans."""
        return None

    def render_html(self) -> str | None:
        """Return the current state as HTML, which the viewer shows in a sandboxed frame in place of `draw`.

        The frame runs no scripts and loads nothing: use inline styles, and images as data addresses.
        """
        return None

    def state_key(self) -> str | None:
        """Return a key that is equal for equal states, so that turns in the same state can be compared."""
        return None

    def state_text(self) -> str | None:
        """Describe the state exactly: one fact per line. It scores replies that describe or predict states.

        See `env.params.reasoning`. Without this method, a judge scores them.
        """
        return None

    def start_key(self) -> str | None:
        """Return the key for `split_start_states`; equal for start states that reveal each other's solution."""
        return self.state_key()

    @property
    def invalid_reward(self) -> float:
        """Reward of a turn with an invalid answer, besides the format penalty. Should cost what a turn costs."""
        return 0.0

    @property
    def action_budget(self) -> int:
        """Number of actions that all limits allow together; start states must be solvable within it."""
        by_turns = self.max_turns * self.max_actions_per_turn
        return by_turns if self.max_actions is None else min(by_turns, self.max_actions)

    def random_answer(self, rng: random.Random) -> str | None:
        """Return a legal reply with a random number of random actions; None without `random_action`.

        With `env.params.reasoning` it describes and predicts states as a demonstration does.
        """
        count = rng.randint(1, min(self.max_actions_per_turn, self.action_budget))
        actions = [action for _ in range(count) if (action := self.random_action(rng)) is not None]
        if wrong := [action for action in actions if not isinstance(action, str)]:
            raise EnvironmentFailure(
                f"{type(self).__name__}.random_action returned {wrong[0]!r}: return a text or None"
            )
        return self.reply(actions) if actions else None


def env_docstring(cls: type[TextEnv]) -> str:
    """Return the first docstring in the class hierarchy below TextEnv; empty if there is none."""
    docstrings = (base.__doc__ for base in cls.__mro__ if issubclass(base, TextEnv) and base is not TextEnv)
    return inspect.cleandoc(next((text for text in docstrings if text), ""))


PROMPT_PARAMS = ("examples",)
"""Parameters that change only the prompt, not the task: they do not affect random streams."""


def reasoning_params(knows_state: bool) -> dict[str, Any]:
    """Return the parameters of replies that describe states, as arguments of `create_model`."""
    reasoning = (
        "Form of the thinking: free, grounding (describe the state), world_modelling (predict the next) or both."
    )
    state_judge = "Judge of described states, such as {model = ...}; required by reasoning without state_text()."
    params: dict[str, Any] = {
        "reasoning": (ReasoningFormat, Field("free", description=reasoning)),
        "grounding_reward": (
            float,
            Field(0.1, description="Reward per turn of a correct description; times its score."),
        ),
        "prediction_reward": (
            float,
            Field(0.1, description="Reward per turn of a correct prediction; times its score."),
        ),
    }
    judged = {"state_judge": (dict[str, Any] | None, Field(None, description=state_judge))}
    return params if knows_state else params | judged


def reasoning_format(cls: type[TextEnv], params: Any) -> ReasoningFormat:
    """Return the format of replies; free for environments that have no such parameter, or another one of that name."""
    if "reasoning" in cls.Params.model_fields or "reasoning" not in params_model(cls).model_fields:
        return "free"
    form: ReasoningFormat = params.reasoning
    return form


@cache
def params_model(cls: type[TextEnv]) -> type[BaseModel]:
    """Return the model of `env.params`: the environment's `Params` plus the limits, with the class's defaults."""
    limits = cls.common_params()
    missing = {name: field for name, field in limits.items() if name not in cls.Params.model_fields}
    bases = (cls.Params,) if issubclass(cls.Params, StrictParams) else (cls.Params, StrictParams)
    return create_model(f"{cls.__name__}Params", __base__=bases, **missing)
