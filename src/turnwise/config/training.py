"""Settings of training steps, supervised fine-tuning and stored episodes."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from turnwise.config.optimizers import OPTIMIZERS, SCHEDULES, AdamW, Constant
from turnwise.settings.choice import Choice, OneOf
from turnwise.settings.needs import (
    ONE_PASS,
    PAIRS,
    PLAYED,
    STORED,
    Lack,
)
from turnwise.settings.section import Idle, LearningRate, NonNegative, Positive, Section


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
    """`turnwise sft`: "solver", a run (its successful episodes), or a file of conversations."""
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


class DataConfig(Section):
    """Stored episodes to train on instead of playing the environment (`turnwise train --data`)."""

    sources: tuple[str, ...] = ()
    """Runs, files of conversations or episodes, and dataset folders; default: the environment is played."""
    capacity: Positive = 100_000
    """Maximum number of episodes; the newest are kept."""
    episodes: Literal["training", "evaluation", "all"] = "training"
    """Episodes of a run that are read: of its training steps, of its evaluations, or both."""
    keep: Literal["all", "succeeded"] | float = "all"
    """Episodes that are kept: all, those that succeeded, or those with at least this total reward."""
    pair_gap: NonNegative = 0.0
    """Smallest difference of total rewards between the episodes of a pair for dpo; 0 compares any that differ."""

    uses: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        **dict.fromkeys(("capacity", "episodes", "keep"), STORED),
        "pair_gap": (STORED, PAIRS),
    }

    def lacks(self) -> dict[str, Lack]:
        if not self.sources:
            return {STORED: Lack("an empty data.sources", "names none", "name stored episodes (data.sources)")}
        fix = "remove data.sources to play the environment"
        return {PLAYED: Lack("data.sources", "replaces them", fix)}
