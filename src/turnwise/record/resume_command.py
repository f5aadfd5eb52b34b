"""How to continue a run, as its errors and its last line print it."""

from pathlib import Path

from turnwise.config.agent import AGENT_ENV
from turnwise.config.load import read_settings
from turnwise.core.errors import UserError
from turnwise.files.run_folders import CONFIG_FILE
from turnwise.text.command_line import spell_command


def spell_resume(run: Path) -> str:
    """Return the command that continues a run: train or sft; or the call, for a loop of the user's own."""
    try:
        settings = read_settings(run / CONFIG_FILE)
    except UserError:  # this may be part of an error about the same disk
        settings = {}
    agent = settings.get("agent", {})
    has_agent = any(agent.get(name) for name in ("command", "function"))
    if settings.get("env", {}).get("kind") == AGENT_ENV and not has_agent:
        return f'tw.Trainer(resume="{run}")'
    is_sft = settings.get("sft", {}).get("demos") is not None
    return spell_command("sft" if is_sft else "train", "--resume", run)


def advise_resume(run: Path) -> str:
    """Return how to continue a run whose files could not be written, and what is kept."""
    if any((run / "checkpoints").glob("step_*")):
        return f"continue from the last checkpoint: `{spell_resume(run)}`"
    return f"start again from the beginning, as there is no checkpoint yet: `{spell_resume(run)}`"
