"""Continue a run from its newest checkpoint."""

from collections.abc import Callable
from pathlib import Path

from turnwise.config.recording import CheckpointConfig
from turnwise.core.errors import UserError
from turnwise.core.learner import Learner
from turnwise.files.run_folders import METRICS_FILE
from turnwise.models.loading.load import LoadedModel
from turnwise.models.settings import ModelConfig
from turnwise.record.resume_command import spell_resume
from turnwise.record.rows import list_records, list_steps, select
from turnwise.record.run_folder import RunFolder
from turnwise.record.steps import StepRecord
from turnwise.run.load_policy import model_loader
from turnwise.text.command_line import spell_command
from turnwise.training.checkpoints import VERSION, Checkpoints, State, restore


def open_checkpoints(checkpoint: CheckpointConfig, loaded: LoadedModel, folder: RunFolder) -> Checkpoints:
    return Checkpoints(
        folder.checkpoints,
        keep_last=checkpoint.keep_last,
        tokenizer=loaded.tokenizer,
        every=checkpoint.every,
    )


def restore_or_init(
    model: ModelConfig,
    checkpoints: Checkpoints,
    learner: Learner,
    folder: RunFolder,
    *,
    resume: bool,
    note: Callable[[str], None],
) -> State:
    """Load the newest checkpoint into the learner, or start at step 0 if there is none. Later rows are discarded."""
    state = State(step=0, skipped_steps=0)
    checkpoints.sweep()
    newest = checkpoints.newest() if resume else None
    if newest is not None:
        path, state = newest
        if state.version != VERSION:
            raise UserError(f"{folder.path} was made by an older version of turnwise. {_advise_older(folder.path)}")
        restore(path, learner, state, model_loader(model))
        checkpoints.drop_before(path)
        _check_metrics(folder, path, state.step, note)
    elif resume:
        note(f"{folder.path} has no checkpoint yet. It starts again from the beginning, with its own settings.")
    if resume:
        folder.discard_from(state.step + 1)
    return state


def _advise_older(run: Path) -> str:
    """Return how to continue a run that cannot be resumed."""
    if " train " not in spell_resume(run):
        return f"It cannot be resumed: start another run with its model, model.name {run}."
    further = spell_command("train", "--from", run, "--model.name", run)
    return f"It cannot be resumed: start another run from its settings and its model: `{further}`"


def _check_metrics(folder: RunFolder, checkpoint: Path, step: int, note: Callable[[str], None]) -> None:
    """Restore lost rows of metrics from the checkpoint's copy and report them; without one, report missing steps."""
    copy = checkpoint / METRICS_FILE
    if copy.is_file():
        if lost := folder.restore_metrics(copy):
            note(f"{folder.metrics_path} lacked {list_records(lost)}, restored from {checkpoint.name}.")
    elif missing := set(range(1, step + 1)) - {record.step for record in select(folder.read_records(), StepRecord)}:
        note(
            f"{folder.metrics_path} lacks {list_steps(missing)}. {checkpoint.name} has no copy (earlier versions made "
            "none), so the run continues without them."
        )
