"""Settings of training steps with their optimizer, and of supervised fine-tuning."""

from typing import Annotated, Literal

from pydantic import Field

from turnwise.settings.choice import Choice, OneOf, choices
from turnwise.settings.needs import (
    ONE_PASS,
    Lack,
)
from turnwise.settings.section import Idle, LearningRate, NonNegative, Positive, Section, Share


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


class TrainConfig(Section):
    """Training steps, optimizer and batch sizes."""

    steps: Positive = 200
    """Training steps: each rolls out groups x group_size episodes, then updates the policy."""
    learning_rate: LearningRate = 1e-6
    """Peak learning rate of the policy."""
    optimizer: Annotated[AdamW, OneOf(setting="train.optimizer", table=OPTIMIZERS)] = AdamW()
    """Optimizer of the policy; "muon": Muon for matrices, AdamW for embeddings, norms and heads."""
    schedule: Annotated[Choice, OneOf(setting="train.schedule", table=SCHEDULES)] = Constant()
    """Learning rate schedule after the warm-up."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps in which the learning rate rises from 0."""
    mini_batch: Positive = 32
    """Trajectories per optimizer step; the last one of a training step gets the rest."""
    epochs: Positive = 1
    """Passes over the trajectories of a step."""
    micro_tokens: Positive | None = None
    """Tokens per forward and backward pass: affects speed and memory, not the result; none chooses by device."""
    optimizer_state: Literal["auto", "device", "host"] = "auto"
    """Memory of float32 master weights and optimizer state; auto: host if the device has too little."""
    recompute: Literal["auto", "on", "off"] = "auto"
    """Activation checkpointing, at a third more compute; auto: only if memory is short."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradients are clipped to this norm."""
    max_minutes: Annotated[float, Field(gt=0)] | None = None
    """Minutes of warm-up and training after which the run stops, is evaluated and summarised; it can be resumed."""

    def lacks(self) -> dict[str, Lack]:
        several = Lack("train.epochs", f"is {self.epochs}", "set train.epochs to 1")
        return {ONE_PASS: several} if self.epochs > 1 else {}


class SftConfig(Section):
    """Supervised fine-tuning on demonstrations (`turnwise sft`)."""

    demos: str | None = None
    """`turnwise sft`: "solver", a run (its successes), its labels.jsonl (the good ones), or conversations."""
    count: Positive = 5000
    """Maximum number of demonstrations; the solver plays this many episodes."""
    epochs: Positive = 1
    """Passes over the demonstrations."""
    batch: Positive = 32
    """Demonstrations per step."""
    learning_rate: LearningRate = 1e-4
    """Peak learning rate of AdamW, after a warm-up; it falls to a tenth."""
    think: bool = True
    """solver: put a true sentence about the next actions before them."""

    def idle(self) -> Idle:
        others = ("count", "epochs", "batch", "learning_rate", "think")
        return {} if self.demos else dict.fromkeys(others, ("sft.demos none", "run `turnwise sft`"))
