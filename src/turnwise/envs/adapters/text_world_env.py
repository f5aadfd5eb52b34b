"""TextWorld: text adventures that are generated, each with a quest."""

from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field

from turnwise.envs.adapters.package_env import PackageEnv
from turnwise.envs.text_env import StrictParams


class TextWorldEnv(PackageEnv):
    """Fulfil the quest of a generated text adventure, of TextWorld."""

    max_turns = 20
    needs = MappingProxyType({"textworld": "'turnwise[textworld]'"})
    world = "turnwise.envs.adapters.text_world_world:TextWorldWorld"
    timeout_s = 120.0  # its compiler takes seconds, on a busy machine many

    class Params(StrictParams):
        rooms: Annotated[int, Field(ge=1, le=30)] = 3
        """1 to 30."""
        objects: Annotated[int, Field(ge=1, le=50)] = 5
        """1 to 50, those of the quest among them."""
        quest_length: Annotated[int, Field(ge=1, le=20)] = 3
        """Commands that the quest takes; now and then there is a shorter way."""
        objective: Literal["steps", "goal"] = "steps"
        """The objective tells every step, or only the last."""
        narrator: Literal["facts", "inform7"] = "facts"
        """facts: what can be seen, in few words; inform7: TextWorld's own prose, compiled in seconds a game."""
        commands: bool = True
        """The observation lists the commands that can be given."""
        progress_reward: float = 0.0
        """For a command that brings the end of the quest nearer, less for one that takes it away."""

    params: Params

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"longest": self.action_budget}

    def rules(self) -> str:
        return "Fulfil the quest. The action is a command, such as: go east, open box, take key from box."

    def state_key(self) -> str:
        """What can be seen, without the quest, which only the first observation tells."""
        return self.text.partition("\n")[2] if self.text.startswith("Quest: ") else self.text
