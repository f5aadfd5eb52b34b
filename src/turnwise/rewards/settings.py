"""Settings of the rewards."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import field_serializer, model_validator

from turnwise.algos.reward_functions import RewardFunction
from turnwise.settings.choice import KIND, OneOf
from turnwise.settings.needs import GROUPS, PLAIN_RETURNS, PLAYED, SINGLE_SCORES, SUMMED_REWARDS, Lack, Need
from turnwise.settings.section import NonNegative, Section


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
