"""Coefficients that adapt to training: of the KL term and of the entropy bonus, and the turn discount."""

from dataclasses import dataclass, replace

from turnwise.algos.entropy import EntropyCoefficient
from turnwise.algos.kl import KlCoefficient
from turnwise.algos.turn_discount import AdaptiveDiscount, CriticFit
from turnwise.core.learner import StepSettings
from turnwise.training.step import Metrics, Part, TrainedStep

MAX_BOOST = 8.0
"""Largest factor of the entropy bonuses: more would drown the rewards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveCoefficients:
    kl: KlCoefficient
    entropy: EntropyCoefficient
    discount: AdaptiveDiscount | None
    """None if the turn discount is constant."""
    exploration: EntropyCoefficient | None = None
    """None without a bonus for varied actions."""
    boost: float = 1.0
    """Factor of both entropy bonuses, raised by alarms (diagnose.answer)."""

    @property
    def entropy_coef(self) -> float:
        return self.boost * self.entropy.value

    @property
    def exploration_coef(self) -> float:
        """0 without a bonus for varied actions."""
        return 0.0 if self.exploration is None else self.boost * self.exploration.value

    def after(
        self,
        kl: float | None,
        entropy: float | None,
        trajectories: int,
        critic_fit: dict[int, CriticFit] | None,
        action_entropy: float | None = None,
    ) -> "AdaptiveCoefficients":
        """Return the coefficients of the next step, given this step's measurements, or None where there are none."""
        moved = self if kl is None else replace(self, kl=self.kl.update(kl, trajectories))
        moved = moved if entropy is None else replace(moved, entropy=self.entropy.update(entropy))
        if moved.exploration is not None and action_entropy is not None:
            moved = replace(moved, exploration=moved.exploration.update(action_entropy))
        if moved.discount is None or critic_fit is None:
            return moved
        return replace(moved, discount=moved.discount.update(critic_fit))

    def numbers(self) -> dict[str, float]:
        """Return the complete state, for checkpoints and metrics."""
        discount = {} if self.discount is None else {"gamma_turn": self.discount.gamma}
        entropy = {} if self.entropy.target is None else {"entropy_coef": self.entropy.value}
        exploration = {} if self.exploration is None else {"exploration_coef": self.exploration.value}
        boost = {} if self.boost == 1 else {"entropy_boost": self.boost}
        return {"kl_coef": self.kl.value} | entropy | exploration | discount | boost

    def restore(self, numbers: dict[str, float]) -> "AdaptiveCoefficients":
        discount = self.discount and replace(self.discount, gamma=numbers["gamma_turn"])
        entropy = replace(self.entropy, value=numbers["entropy_coef"]) if self.entropy.target else self.entropy
        exploration = self.exploration
        if exploration is not None:
            exploration = replace(exploration, value=numbers["exploration_coef"])
        kl = replace(self.kl, value=numbers["kl_coef"])
        boost = numbers.get("entropy_boost", 1.0)
        return replace(self, kl=kl, entropy=entropy, discount=discount, exploration=exploration, boost=boost)


class Coefficients(Part):
    """The adaptive coefficients of a run, which move after each update."""

    name = "coefficients"

    def __init__(self, value: AdaptiveCoefficients, *, kl_in_loss: bool) -> None:
        """`kl_in_loss`: the KL is a term of the loss, not of the reward."""
        self.value, self._kl_in_loss = value, kl_in_loss

    def state(self) -> dict[str, float]:
        return self.value.numbers()

    def load_state(self, state: dict[str, float]) -> None:
        self.value = self.value.restore(state)

    def explore_more(self) -> str | None:
        """Double the entropy bonuses, at most to MAX_BOOST; return what changed, None if nothing can."""
        value = self.value
        if value.boost >= MAX_BOOST or not (value.entropy.value or value.exploration):
            return None
        self.value = replace(value, boost=2 * value.boost)
        return f"entropy bonuses are now multiplied by {self.value.boost:g}"

    def adjust(self, settings: StepSettings) -> StepSettings:
        kl_coef = self.value.kl.value if self._kl_in_loss else 0.0
        return replace(settings, kl_coef=kl_coef, entropy_coef=self.value.entropy_coef)

    def record(self, trained: TrainedStep) -> Metrics:
        if (estimate := trained.estimate) is not None:
            kl = estimate.metrics.get("kl", trained.metrics.get("kl"))
            entropy = trained.metrics.get("entropy")
            actions = estimate.metrics.get("action_entropy")
            self.value = self.value.after(kl, entropy, len(estimate.trajectories), estimate.critic_fit, actions)
        return {f"train/{name}": value for name, value in self.value.numbers().items()}
