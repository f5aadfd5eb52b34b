"""Settings of the critics: of tokens, for advantages that use values, or of whole utterances, for ArCHer and AWAC."""

from typing import Annotated, ClassVar

from pydantic import Field

from turnwise.settings.choice import Choice, choices
from turnwise.settings.needs import TOKEN_CRITIC, UTTERANCE_CRITIC, Lack
from turnwise.settings.section import LearningRate, NonNegative, Positive


class CriticSettings(Choice):
    """A critic, for advantages and estimators that need one."""

    learning_rate: LearningRate = 1e-5
    """Learning rate of the critic."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps at the start in which only the critic is trained."""


class TokenCriticSettings(CriticSettings):
    """A critic of tokens: V before each sampled token, trained with `value_loss` (`losses.py`)."""

    value_clip: Annotated[float, Field(gt=0)] = 0.5
    """Clip range of the value loss around the old value."""
    value_coef: NonNegative = 1.0
    """Coefficient of the value loss."""

    def lacks(self) -> dict[str, Lack]:
        return {UTTERANCE_CRITIC: Lack(f"critic {self.kind}", "is one of tokens", "choose critic utterances")}


class TrunkCriticSettings(TokenCriticSettings, kind="trunk"):
    """A separate model, initialised from the policy."""


class HeadCriticSettings(TokenCriticSettings, kind="head"):
    """A value head on the policy."""


class UtteranceCriticSettings(CriticSettings):
    """A critic of whole utterances (ArCHer, Zhou et al. 2024): two Q and two V heads, trained as in `archer.py`."""

    owns_trunk: ClassVar[bool] = True

    updates: Positive = 8
    """Critic updates per step, before the actor's."""
    batch: Positive = 32
    """Trajectories per critic update, with all of their turns."""
    target_rate: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Polyak averaging: share of the critic in its target copy after each update."""

    def lacks(self) -> dict[str, Lack]:
        return {TOKEN_CRITIC: Lack(f"critic {self.kind}", "is one of utterances", "choose critic trunk or head")}


class UtteranceTrunkSettings(UtteranceCriticSettings, kind="utterances"):
    """A critic of utterances with a trunk of its own, a trained copy of the policy's."""


class UtteranceHeadSettings(UtteranceCriticSettings, kind="utterance_head"):
    """Heads for utterances on the policy's hidden states."""

    owns_trunk: ClassVar[bool] = False


CRITICS: dict[str, type[CriticSettings]] = choices(
    TrunkCriticSettings, HeadCriticSettings, UtteranceTrunkSettings, UtteranceHeadSettings
)
