"""Settings of alarms, evaluations, checkpoints and the run folder."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from turnwise.settings.needs import (
    STEP_GROUPS,
    VALIDATION,
    Lack,
    Need,
)
from turnwise.settings.section import Idle, NonNegative, Positive, Section


class DiagnoseConfig(Section):
    """Alarms about a run that goes wrong, and diagnostic measurements."""

    alarms: bool = True
    """Report when a run goes wrong: echo trap, entropy collapse, gradient spikes, endless answers."""
    rollback: bool = False
    """At an alarm, return to the oldest kept checkpoint with half the learning rate."""
    max_rollbacks: Positive = 3
    """Maximum number of rollbacks; later alarms are only reported."""
    information_every: Annotated[int, Field(ge=0)] = 0
    """Steps between measurements of how much the reasoning depends on the prompt; 0 disables them."""
    information_prompts: Annotated[int, Field(ge=2)] = 8
    """Trajectories per measurement, which scores every pair of prompt and reasoning."""
    gradients_every: Annotated[int, Field(ge=0)] = 0
    """Steps between measurements of the gradient norm by reward spread; 0 disables them."""
    gradient_buckets: Annotated[int, Field(ge=2)] = 4
    """Quantiles of reward spread per measurement."""

    @model_validator(mode="after")
    def check_alarms(self) -> "DiagnoseConfig":
        if self.rollback and not self.alarms:
            raise ValueError("diagnose.rollback reacts to alarms, and diagnose.alarms is false. Set it to true.")
        return self

    def idle(self) -> Idle:
        found: dict[str, tuple[str, str]] = {}
        if not self.rollback:
            found["max_rollbacks"] = ("diagnose.rollback false", "set diagnose.rollback to true")
        if not self.information_every:
            found["information_prompts"] = ("diagnose.information_every 0", "raise diagnose.information_every")
        if not self.gradients_every:
            found["gradient_buckets"] = ("diagnose.gradients_every 0", "raise diagnose.gradients_every")
        return found

    def needs(self) -> list[Need]:
        why, without = (
            "diagnose.gradients_every compares groups that a step trains on",
            "set diagnose.gradients_every to 0",
        )
        return [Need(STEP_GROUPS, why, without)] if self.gradients_every else []


class EvalConfig(Section):
    """Evaluations before, during and after training, and those of `turnwise eval`."""

    every: Annotated[int, Field(ge=0)] = 0
    """Steps between evaluations on the validation split; 0 evaluates only before and after training."""
    episodes: Positive = 256
    """Episodes per evaluation."""
    temperature: NonNegative = 0.5
    """Sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling: probability mass of the most likely tokens to sample from."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Number of most likely tokens to sample from; 0 samples from all."""
    split: Literal["validation", "test"] = "test"
    """Split of the evaluations before and after training; those in between use the validation split."""

    def idle(self) -> Idle:
        greedy = ("eval.temperature 0", "raise eval.temperature, because 0 is greedy")
        return {} if self.temperature else dict.fromkeys(("top_p", "top_k"), greedy)

    def lacks(self) -> dict[str, Lack]:
        return (
            {}
            if self.every
            else {VALIDATION: Lack("eval.every 0", "evaluates only before and after training", "raise eval.every")}
        )


class CheckpointConfig(Section):
    """Checkpoints, which a stopped run resumes from."""

    every: Positive = 10
    """Steps between checkpoints."""
    keep_last: Positive = 2
    """Number of latest checkpoints kept besides the best."""
    keep_best: bool = True
    """Keep the checkpoint with the highest success on the validation split; needs eval.every."""

    uses: ClassVar[Mapping[str, str | tuple[str, ...]]] = {"keep_best": VALIDATION}


class RecordConfig(Section):
    """Run folder, and what is recorded in it."""

    folder: str = "runs"
    """Folder of all run folders."""
    name: str | None = None
    """Name of the run folder; none builds one from environment, model and seed."""
    trajectories: Annotated[int, Field(ge=0)] = 1
    """Steps between steps whose trajectories are written, beside those of evaluations; 0 writes none."""
    pictures_every: Annotated[int, Field(ge=0)] = 0
    """Steps between steps whose trajectories are drawn, as a strip (PNG) and a film (GIF); 0 draws none."""
    pictures_per_step: Positive = 1
    """Number of trajectories drawn per step."""
    trackers: tuple[str, ...] = ()
    """Trackers that get the metrics too: wandb (offline unless WANDB_MODE is set), tensorboard, trackio."""
    report: bool = True
    """Write report.html, a single file, when the run ends."""

    def idle(self) -> Idle:
        if not self.trajectories:
            none = ("record.trajectories 0", "raise record.trajectories")
            return dict.fromkeys(("pictures_every", "pictures_per_step"), none)
        never = ("record.pictures_every 0", "raise record.pictures_every")
        return {} if self.pictures_every else {"pictures_per_step": never}
