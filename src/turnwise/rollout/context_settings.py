"""Settings of the context modes: which earlier turns the model sees. `context.py` draws them."""

from typing import Annotated

from pydantic import Field

from turnwise.settings.choice import Choice, choices
from turnwise.settings.needs import WHOLE_CONTEXT, Lack
from turnwise.settings.section import Positive


class ContextSettings(Choice):
    """A context mode."""

    @property
    def shows_current_turn_only(self) -> bool:
        return False


class Full(ContextSettings, kind="full"):
    """All earlier turns."""


class PartSettings(ContextSettings):
    """A mode that restarts its context."""

    keep_opening: bool = False
    """Keep the first observation, such as a question; else only the system message."""

    def lacks(self) -> dict[str, Lack]:
        return {WHOLE_CONTEXT: Lack(f"context {self.kind}", "is for environments", "remove context")}


class Window(PartSettings, kind="window"):
    """The last turns in full: whole turns are dropped from the front."""

    turns: Annotated[int, Field(ge=0)] = 4
    """Earlier turns kept besides the current one."""


class Turn(PartSettings, kind="turn"):
    """The current turn, and a memory of earlier ones as text."""

    turns: Annotated[int, Field(ge=0)] = 4
    """Earlier turns in the memory."""

    @property
    def shows_current_turn_only(self) -> bool:
        return self.turns == 0 and not self.keep_opening


class Summary(PartSettings, kind="summary"):
    """All turns since the last summary. One is due when the context is half of rollout.max_tokens long."""

    every: Positive | None = None
    """Turns that trigger a summary at any length; none leaves it to the length."""
    summary: Annotated[Positive | str, Field(union_mode="left_to_right")] = 128
    """Maximum number of tokens of a summary by the model; or FILE.py:function from the episode's messages to text."""

    @property
    def tokens(self) -> int:
        """Maximum number of sampled tokens of a summary; 0 if a function writes it."""
        return self.summary if isinstance(self.summary, int) else 0


CONTEXTS: dict[str, type[ContextSettings]] = choices(Full, Window, Turn, Summary)
