"""Settings of the rewards."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import field_serializer, model_validator

from turnwise.settings.choice import KIND, Choice, OneOf
from turnwise.settings.needs import GROUPS, PLAIN_RETURNS, PLAYED, SINGLE_SCORES, SUMMED_REWARDS, Lack, Need
from turnwise.settings.section import NonNegative, Section
from turnwise.user_code.references import reference_name


class RewardFunction(Choice):
    """A reward of whole trajectories and its settings.

    A reward of your own, FILE.py:name in reward.functions, is a class derived from `tw.RewardFunction` with `score`, or
    a function of the trajectory.
    """

    @abstractmethod
    def score(self, trajectory: Any) -> Any:
        """Return a number for the last turn, or one number per turn. May be a coroutine."""

    @property
    def function(self) -> Callable[..., Any]:
        """The user's code, called with a trajectory."""
        return self.score

    @property
    def reward_name(self) -> str:
        """Its name in metrics and trajectories."""
        return reference_name(self.kind)

    @classmethod
    def from_function(cls, function: Callable[..., Any]) -> "type[RewardFunction]":
        class PlainFunction(RewardFunction):
            def score(self, trajectory: Any) -> Any:
                return user_function(trajectory)

            @property
            def function(self) -> Callable[..., Any]:
                return user_function

        user_function = function
        return PlainFunction


class RewardConfig(Section):
    """Rewards in addition to the environment's own, and how they are combined."""

    format_penalty: NonNegative = 0.1
    """Penalty for each turn whose answer cannot be parsed."""
    functions: tuple[
        Annotated[RewardFunction, OneOf(setting="reward.functions", table={}, base=RewardFunction)], ...
    ] = ()
    """Rewards of trajectories, each FILE.py:function, or a table with the kind FILE.py:Class and its settings."""
    weights: tuple[float, ...] = ()
    """Weights of the environment's reward (with its format penalty) and of each function; default: all 1."""
    judges: tuple[dict[str, Any], ...] = ()
    """Judge models that score episodes, alone or within their group: tables of model, rubric, mode, weight."""
    combine: Literal["sum", "each", "process"] = "sum"
    """"sum"; "each": normalise each reward in its group, then sum; "process": scale rewards before the last turn."""

    uses: ClassVar[Mapping[str, str | tuple[str, ...]]] = {"format_penalty": PLAYED, "weights": PLAYED}

    @field_serializer("functions")
    def _write_functions(self, functions: tuple[RewardFunction, ...]) -> list[Any]:
        """Write a function, which has no settings, as its reference alone."""
        tables = [function.model_dump() for function in functions]
        return [table if len(table) > 1 else table[KIND] for table in tables]

    @model_validator(mode="after")
    def _check_weights(self) -> "RewardConfig":
        if len(self.weights) not in (0, 1 + len(self.functions)):
            raise ValueError(
                "reward.weights needs one number for the environment's reward and one for each of reward.functions. "
                "Give as many, or remove it."
            )
        return self

    @property
    def compares_members(self) -> bool:
        return any(judge.get("mode") in ("relative", "pairwise") for judge in self.judges)

    def needs(self) -> list[Need]:
        needs = []
        if self.combine == "each":
            needs.append(
                Need(GROUPS, "reward.combine each compares the members of a group", "choose reward.combine sum")
            )
        if self.combine != "sum":
            needs.append(Need(PLAIN_RETURNS, f"reward.combine {self.combine} already normalises rewards"))
        if self.compares_members:
            why = "reward.judges with mode relative or pairwise compare the members of a group"
            needs.append(Need(GROUPS, why, "choose mode absolute"))
        names = [f"reward.{name}" for name in ("functions", "judges") if getattr(self, name)]
        return [
            *needs,
            *(Need(PLAYED, f"{name} score episodes that are played", f"remove {name}") for name in names),
        ]

    def lacks(self) -> dict[str, Lack]:
        lacks = {}
        if self.combine != "sum":
            name = f"reward.combine {self.combine}"
            lacks[SUMMED_REWARDS] = Lack(name, "normalises the rewards", "choose reward.combine sum")
        if self.compares_members:
            judges = "reward.judges with mode relative or pairwise"
            lacks[SINGLE_SCORES] = Lack(judges, "compare the members of a group", "choose mode absolute")
        return lacks
