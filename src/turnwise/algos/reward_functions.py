"""Rewards of trajectories that users write: `reward.functions`."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from turnwise.settings.choice import Choice
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
            @property
            def function(self) -> Callable[..., Any]:
                return user_function

        user_function = function
        return PlainFunction
