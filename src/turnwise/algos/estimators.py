"""Settings of the estimators: what turns the episodes of a step into a weight for each trained token.

on_policy computes algo.advantage on the episodes of the step. The others train a critic of whole utterances off-policy
and an actor on the tokens of utterances (ArCHer, Zhou et al. 2024); their formulas are in `archer.py`.
"""

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from turnwise.settings.choice import Choice, choices
from turnwise.settings.needs import (
    ENVIRONMENT,
    FIXED_OPPONENT,
    IN_TURN,
    KL_IN_LOSS,
    LOCAL_ENGINE,
    LOCAL_LEARNER,
    PLAIN_RETURNS,
    PLAYED,
    STORED,
    SUMMED_REWARDS,
    UTTERANCE_CRITIC,
    Need,
)
from turnwise.settings.section import Positive, Share


class EstimatorChoice(Choice):
    """An estimator, built in or of the user's own."""

    uses_advantage: ClassVar[bool] = False
    """Computes algo.advantage, on the groups that algo.filter keeps."""
    trains_critic: ClassVar[bool] = False
    """Trains a critic of its own."""


class EstimatorSettings(EstimatorChoice):
    """Settings of an estimator.

    An estimator of your own, algo.estimator FILE.py:Name, is a class derived from `tw.EstimatorSettings` with `build`.
    """

    @abstractmethod
    def build(self, run: Any) -> Any:
        """Return the user's `tw.Estimator`, given `tw.RunParts`. `run/build_loop.py` builds the built-in ones."""


class OnPolicySettings(EstimatorChoice, kind="on_policy"):
    """algo.advantage on the episodes of the step."""

    uses_advantage: ClassVar[bool] = True


class UtteranceEstimator(EstimatorChoice):
    """A critic of whole utterances. It replaces algo.advantage, algo.filter and the token masks."""

    trains_critic: ClassVar[bool] = True

    gamma_turn: Share = 1.0
    """Discount per turn."""
    whiten: bool = True
    """Whiten the advantages of the utterances; false: divide them by the standard deviation of the returns."""

    def needs(self) -> list[Need]:
        name = f"algo.estimator {self.kind}"
        return [
            Need(UTTERANCE_CRITIC, f"{name} needs a critic of utterances"),
            Need(IN_TURN, f"{name} trains its critic between rollout and update"),
            Need(LOCAL_ENGINE, f"{name} runs in this process"),
            Need(LOCAL_LEARNER, f"{name} trains its critic in this process"),
            Need(FIXED_OPPONENT, f"{name} learns from episodes of many steps"),
            Need(KL_IN_LOSS, f"{name} has a critic that learns the rewards of old episodes"),
            Need(PLAIN_RETURNS, f"{name} learns from turn rewards as they are"),
            Need(SUMMED_REWARDS, f"{name} learns from turn rewards as they are"),
        ]


class ActingEstimator(UtteranceEstimator):
    """An estimator that trains V at turns where the policy acts again."""

    states: Positive = 64
    """Turns per step at which the policy acts again, of stored episodes; archer: as many of new ones for itself."""


class ArcherSettings(ActingEstimator, kind="archer"):
    """ArCHer on episodes that are played, with a replay of them."""

    def needs(self) -> list[Need]:
        why = "algo.estimator archer fills its replay buffer with episodes of an environment"
        return [Need(PLAYED, why, OFFLINE), Need(ENVIRONMENT, why, OFFLINE), *super().needs()]

    replay: Positive = 10000
    """Newest trajectories that the critic's updates are drawn from."""
    correction: Literal["returns", "none"] = "returns"
    """returns: the actor also learns what the critic missed (Q-Prop); none: the critic alone, as far as it is right."""


class ArcherOfflineSettings(UtteranceEstimator, kind="archer_offline"):
    """ArCHer on stored episodes (implicit Q-learning, Kostrikov et al. 2021)."""

    expectile: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Expectile of Q over the stored utterances that V learns: 0.5 is their mean, 1 their best."""

    def needs(self) -> list[Need]:
        return [_stored(self.kind), *super().needs()]


class AwacSettings(ActingEstimator, kind="awac"):
    """AWAC (Nair et al. 2020) on stored episodes: V is that of the policy, which acts at stored states."""

    def needs(self) -> list[Need]:
        acts = Need(ENVIRONMENT, "algo.estimator awac lets the policy act at stored states of an environment", OFFLINE)
        return [_stored(self.kind), acts, *super().needs()]


OFFLINE = "choose algo.estimator archer_offline"


def _stored(kind: str) -> Need:
    return Need(STORED, f"algo.estimator {kind} trains on stored episodes alone", "choose algo.estimator archer")


ESTIMATORS: dict[str, type[EstimatorChoice]] = choices(
    OnPolicySettings, ArcherSettings, ArcherOfflineSettings, AwacSettings
)
