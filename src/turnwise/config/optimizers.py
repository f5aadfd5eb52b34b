"""Settings of the optimizers and of the learning rate's schedule."""

from turnwise.settings.choice import Choice, choices
from turnwise.settings.section import LearningRate, NonNegative, Share


class AdamW(Choice, kind="adamw"):
    """AdamW (Loshchilov and Hutter 2019)."""

    weight_decay: NonNegative = 0.0
    """Weight decay."""


class Muon(AdamW, kind="muon"):
    """Muon for matrices (Jordan et al. 2024), AdamW for embeddings, norms and heads."""

    learning_rate: LearningRate = 0.02
    """Learning rate of Muon; about 100 times AdamW's, since its updates are scaled differently."""


OPTIMIZERS: dict[str, type[AdamW]] = choices(AdamW, Muon)


class Constant(Choice, kind="constant"):
    """The peak after the warm-up."""


class Linear(Choice, kind="linear"):
    """Falls linearly."""

    final_share: Share = 0.0
    """Final learning rate, as a share of the peak."""


class Cosine(Linear, kind="cosine"):
    """Falls like half a cosine."""


SCHEDULES: dict[str, type[Choice]] = choices(Constant, Linear, Cosine)
