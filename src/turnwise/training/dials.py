"""Numbers that training turns by itself, from step to step: the KL's weight and the turn discount."""

from dataclasses import dataclass, replace

from turnwise.algos.kl import KlCoefficient
from turnwise.algos.turn_discount import AdaptiveDiscount, Foresight


@dataclass(frozen=True, slots=True, kw_only=True)
class Dials:
    kl: KlCoefficient
    discount: AdaptiveDiscount | None
    """None: the turn discount is fixed."""

    def after(self, kl: float | None, trajectories: int, foresight: dict[int, Foresight] | None) -> "Dials":
        """Of the next step, by what this one measured; None: it measured none."""
        moved = self if kl is None else replace(self, kl=self.kl.after(kl, trajectories))
        if moved.discount is None or foresight is None:
            return moved
        return replace(moved, discount=moved.discount.after(foresight))

    def numbers(self) -> dict[str, float]:
        """Their whole state, for checkpoints and metrics."""
        discount = {} if self.discount is None else {"gamma_turn": self.discount.gamma}
        return {"kl_coef": self.kl.value} | discount

    def restored(self, numbers: dict[str, float]) -> "Dials":
        discount = self.discount and replace(self.discount, gamma=numbers["gamma_turn"])
        return replace(self, kl=replace(self.kl, value=numbers["kl_coef"]), discount=discount)
