"""The command that continues a run, as its errors and its last line print it."""

from pathlib import Path
from typing import Literal

from turnwise.config.load import read_settings
from turnwise.config.older_runs import migrate
from turnwise.core.errors import UserError
from turnwise.envs.agent.choices import starts_agent
from turnwise.envs.agent.settings import AGENT_ENV
from turnwise.files.run_folders import CONFIG_FILE
from turnwise.text.command_line import spell_command


def spell_resume(run: Path) -> str:
    """Return the command that continues a run: train or sft; or the call, for a loop of the user's own."""
    command = resuming_command(run)
    return f'tw.Trainer(resume="{run}")' if command is None else spell_command(command, "--resume", run)


def resuming_command(run: Path) -> Literal["train", "sft"] | None:
    """Return the command that takes `--resume RUN`; None for a loop of the user's own."""
    try:
        settings = migrate(read_settings(run / CONFIG_FILE))
    except UserError:  # this may be part of an error about the same disk
        settings = {}
    if settings.get("env", {}).get("kind") == AGENT_ENV and not starts_agent(settings.get("agent")):
        return None
    return "sft" if settings.get("sft", {}).get("demos") is not None else "train"


def advise_resume(run: Path) -> str:
    """Return how to continue a run whose files could not be written, and what is kept."""
    if any((run / "checkpoints").glob("step_*")):
        return f"continue from the last checkpoint: `{spell_resume(run)}`"
    return f"start again from the beginning, as there is no checkpoint yet: `{spell_resume(run)}`"
