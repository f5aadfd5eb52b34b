"""Settings of alarms, evaluations, checkpoints and the run folder."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from turnwise.settings.needs import Package
from turnwise.settings.section import Idle, NonNegative, Positive, Section


class DiagnoseConfig(Section):
    """Alarms about a run that goes wrong, and diagnostic measurements."""

    answer: Literal["none", "adjust", "roll_back"] = "none"
    """Answer to alarms: adjust the learning rate and the entropy bonuses, or roll back to the oldest checkpoint."""
    every: Annotated[int, Field(ge=0)] = 0
    """Steps between measurements: dependence of the reasoning on the prompt, gradient by reward spread; 0: never."""


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


class CheckpointConfig(Section):
    """Checkpoints, which a stopped run resumes from. The best on the validation split is always kept."""

    every: Positive = 10
    """Steps between checkpoints."""
    keep_last: Positive = 2
    """Number of latest checkpoints that are kept."""


class RecordConfig(Section):
    """Run folder, and what is recorded in it."""

    folder: str = "runs"
    """Folder of all run folders."""
    name: str | None = None
    """Name of the run folder; none builds one from environment, model and seed."""
    parent: str | None = None
    """Run whose settings this run started from; `--from RUN` sets it."""
    trajectories: Annotated[int, Field(ge=0)] = 1
    """Steps between steps whose trajectories are written, beside those of evaluations; 0 writes none."""
    pictures_every: Annotated[int, Field(ge=0)] = 0
    """Steps between steps that a trajectory is drawn of, as a strip (PNG) and a film (GIF); 0 draws none."""
    price: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Price of an hour of a GPU, or of the machine for a run on the CPU; none shows no cost."""
    trackers: tuple[str, ...] = ()
    """Trackers that get the metrics too: wandb (offline unless WANDB_MODE is set), tensorboard, trackio."""

    @property
    def path(self) -> Path | None:
        """Run folder; None before the run has a name."""
        return None if self.name is None else Path(self.folder) / self.name

    def packages(self) -> list[Package]:
        return [Package("record.pictures_every", "PIL", "pictures")] if self.pictures_every else []

    def idle(self) -> Idle:
        none = ("record.trajectories 0", "raise record.trajectories")
        return {} if self.trajectories else {"pictures_every": none}
