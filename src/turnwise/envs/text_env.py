"""The easy way to write an environment: strings in, strings out, no async.

    class GuessNumber(TextEnv):
        \"\"\"I think of a number between 1 and 100.\"\"\"
        max_turns = 7
        def reset(self, rng): self.secret = rng.randint(1, 100); return "Guess my number (1-100)."
        def step(self, action):
            guess = int(action)                     # ValueError -> invalid action; the episode goes on
            if guess == self.secret: return won("Correct!")
            return goes_on("higher" if guess < self.secret else "lower")

`runner.TextEnvRunner` turns an instance into the core's `Env`.
"""

import inspect
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, create_model

from turnwise.core.messages import Picture
from turnwise.core.random_streams import random_stream
from turnwise.core.task import Split
from turnwise.envs.answers import format_answer

if TYPE_CHECKING:
    from turnwise.rewards.services import RewardServices


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one action led to. Made by `won`, `lost` and `goes_on`."""

    text: str
    """The new observation. After several actions in one turn the model sees the last one's."""
    reward: float
    over: bool
    success: bool
    parts: Mapping[str, float] = field(default_factory=dict)
    """Of the reward, by name and before they were weighted, where it has parts; recorded under these names."""


def won(text: str = "", reward: float = 1.0) -> Outcome:
    """The episode ends with success."""
    return Outcome(text=text, reward=reward, over=True, success=True)


def lost(text: str = "", reward: float = 0.0) -> Outcome:
    """The episode ends without success."""
    return Outcome(text=text, reward=reward, over=True, success=False)


def goes_on(text: str = "", reward: float = 0.0) -> Outcome:
    """The episode goes on."""
    return Outcome(text=text, reward=reward, over=False, success=False)


class StrictParams(BaseModel):
    """An unknown or later changed parameter is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class TextEnv(ABC):
    """An environment's rules. The docstring of a subclass opens the prompt; its first line names it in lists."""

    max_turns: int = 10
    """Answers of the model in an episode, at most. This and the other two limits are parameters too."""
    max_actions_per_turn: int = 1
    max_actions: int | None = None
    """Actions of an episode, at most; None: as many as the turns allow."""
    action_names: tuple[str, ...] = ()
    """All actions, where they are a fixed list: the prompt names them, and others are invalid before `step`."""
    needs: Mapping[str, str] = MappingProxyType({})
    """Optional dependencies: module -> what to install."""

    class Params(StrictParams):
        """The environment's own parameters, reachable as `self.params`."""

    runner: ClassVar[Any] = None
    """What runs its episodes: a subclass of TextEnvRunner; None: that one itself."""
    params: Any
    rng: random.Random
    """What the environment draws after `reset`: a stream of the member's own."""
    split_start_states: bool = False
    """True: every start state belongs to one split, by its `start_key()`, and `reset` is called until one does.

    For worlds of so few start states that seeds of different splits would meet; it makes them anew at every call."""
    index: int = 0
    """The task's number in its split, for environments whose tasks are counted."""
    services: "RewardServices | None" = None
    """Judges of the run, for environments that score answers with a rubric."""
    split: Split | None = None
    """The task's, for environments whose splits differ in more than seeds; None: made by hand, without a task."""

    def __init__(self, params: Mapping[str, Any] | None = None, rng: random.Random | None = None) -> None:
        self.params = params_model(type(self)).model_validate(dict(params or {}))
        self.rng = random_stream("luck") if rng is None else rng
        self.max_turns = self.params.max_turns
        self.max_actions_per_turn = self.params.max_actions_per_turn
        self.max_actions = self.params.max_actions

    @classmethod
    def check(cls, params: Any) -> None:
        """Refuses parameters that cannot work although each is well formed, such as a file that is not there.

        Called once, before anything starts."""
        return

    @classmethod
    def size(cls, params: Any, split: Split) -> int | None:
        """How many tasks a split has, where they are counted; None: there is no end of them."""
        return None

    @abstractmethod
    def reset(self, rng: random.Random) -> str:
        """Makes the start state from this stream and returns the first observation. Called once."""

    @abstractmethod
    def step(self, action: str) -> Outcome:
        """Runs one action. A ValueError says that it is no legal action and must leave the state as it was."""

    def rules(self) -> str:
        """What opens the prompt. It must not differ between episodes of equal parameters."""
        return env_docstring(type(self))

    def random_action(self, rng: random.Random) -> str | None:
        """One legal action, for warm-up and fuzzing; None where the environment offers none."""
        return rng.choice(self.action_names) if self.action_names else None

    def solve(self) -> list[str] | None:
        """Actions that lead from the present state to success; None where there is no solver or no way."""
        return None

    def explain(self, actions: Sequence[str]) -> str:
        """A true line about why these come next, for demonstrations."""
        return f"Next: {', '.join(actions)}."

    def reply(self, actions: Sequence[str], think: str | None = None) -> str:
        """An assistant's whole answer with these actions, for demonstrations."""
        return format_answer(actions, think)

    def draw(self) -> Picture | None:
        """The present state for humans."""
        return None

    def state_key(self) -> str | None:
        """Equal for equal states, so that turns that met the same state can be compared."""
        return None

    def start_key(self) -> str | None:
        """Key of the start state for `split_start_states`; equal for start states that give each other away."""
        return self.state_key()

    @property
    def invalid_reward(self) -> float:
        """Of a turn that ends with an invalid answer, besides the format penalty. Where turns cost, this does too."""
        return 0.0

    @property
    def action_budget(self) -> int:
        """Actions that all of the limits together allow in an episode: a start state must be solvable in these."""
        by_turns = self.max_turns * self.max_actions_per_turn
        return by_turns if self.max_actions is None else min(by_turns, self.max_actions)

    def random_answer(self, rng: random.Random) -> str | None:
        """A legal answer of a random number of random actions; None where there is no `random_action`."""
        count = rng.randint(1, min(self.max_actions_per_turn, self.action_budget))
        actions = [action for _ in range(count) if (action := self.random_action(rng)) is not None]
        return format_answer(actions) if actions else None


def env_docstring(cls: type[TextEnv]) -> str:
    """The nearest docstring of an environment, not `TextEnv`'s own; empty if it has none."""
    own = (base.__doc__ for base in cls.__mro__ if issubclass(base, TextEnv) and base is not TextEnv)
    return inspect.cleandoc(next((text for text in own if text), ""))


PROMPT_PARAMS = ("examples",)
"""Of `env.params` those that change the prompt and nothing else: equal seeds are equal tasks, whatever they are."""


@cache
def params_model(cls: type[TextEnv]) -> type[BaseModel]:
    """All that `env.params` may set: the environment's `Params`, and the limits with the class's values as defaults."""
    limits: dict[str, Any] = {
        "max_turns": (int, Field(cls.max_turns, ge=1, description="Turns an episode, at most.")),
        "max_actions_per_turn": (int, Field(cls.max_actions_per_turn, ge=1, description="Actions a turn, at most.")),
        "max_actions": (int | None, Field(cls.max_actions, ge=1, description="Actions an episode, at most.")),
    }
    if cls.action_names:
        shown = "The prompt shows each action as a whole answer, for models that copy more than they understand."
        limits["examples"] = (bool, Field(False, description=shown))
    missing = {name: field for name, field in limits.items() if name not in cls.Params.model_fields}
    bases = (cls.Params,) if issubclass(cls.Params, StrictParams) else (cls.Params, StrictParams)
    return create_model(f"{cls.__name__}Params", __base__=bases, **missing)
