"""Gymnasium: any environment of it with discrete actions whose state can be told in words or numbers."""

from types import MappingProxyType
from typing import Any

from pydantic import Field

from turnwise.envs.adapters.package_env import PackageEnv
from turnwise.envs.text_env import StrictParams


class GymnasiumEnv(PackageEnv):
    """An environment of Gymnasium with discrete actions, in words."""

    max_turns = 20
    needs = MappingProxyType({"gymnasium": "'turnwise[gymnasium]'"})
    world = "turnwise.envs.adapters.gymnasium_world:GymnasiumWorld"

    class Params(StrictParams):
        id: str = "Taxi-v4"
        """Its name in Gymnasium; MODULE:NAME imports a module that registers it."""
        options: dict[str, Any] = Field({})
        """What it is made with, such as is_slippery; FrozenLake also takes map_name "random", size and p."""
        actions: tuple[str, ...] = ()
        """Names of the actions in their order; none given: those known of it, else numbers."""
        success_at: float | None = None
        """The last reward from which an episode that ended counts as success; none: as known of it, else above 0."""

        invalid_reward: float | None = None
        """Of an answer that is no action; none: what a step costs where that is known, else 0."""

    params: Params

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"longest": self.action_budget}

    def rules(self) -> str:
        return str(self.about["rules"])

    @property
    def invalid_reward(self) -> float:
        return float(self.about["invalid_reward"])

    def state_key(self) -> str:
        return self.text
