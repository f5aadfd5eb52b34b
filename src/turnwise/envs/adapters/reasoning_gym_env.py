"""reasoning-gym: its hundred kinds of generated tasks, with its own scorers."""

from types import MappingProxyType
from typing import Any

from pydantic import Field

from turnwise.envs.adapters.package_env import PackageEnv
from turnwise.envs.text_env import StrictParams


class ReasoningGymEnv(PackageEnv):
    """A generated task with one answer, of reasoning-gym.

    The reward is the score of the best answer so far; full marks are success.
    """

    max_turns = 1
    needs = MappingProxyType({"reasoning_gym": "'turnwise[reasoning-gym]'"})
    world = "turnwise.envs.adapters.reasoning_gym_world:ReasoningGymWorld"

    class Params(StrictParams):
        task: str = "leg_counting"
        """The dataset's name in reasoning-gym."""
        options: dict[str, Any] = Field({})
        """Of the dataset, such as min_animals."""
        success_at: float = 1.0
        """The score that counts as success."""

    params: Params

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"tries": self.max_turns}

    def rules(self) -> str:
        return "Solve the task. The action is the answer alone, as the task asks for it."
