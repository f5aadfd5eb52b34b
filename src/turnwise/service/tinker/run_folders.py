"""The run folder of a trained model, which `turnwise view` opens: a row of metrics for each optimizer step."""

from collections.abc import Mapping
from pathlib import Path

from turnwise.files.run_folders import CONFIG_FILE
from turnwise.record.rows import select
from turnwise.record.run_folder import RunFolder
from turnwise.record.steps import EpisodeSource, IdleReason, StepRecord


class ModelRun:
    def __init__(self, path: Path, config_toml: str) -> None:
        exists = (path / CONFIG_FILE).is_file()
        self._folder = RunFolder.open(path, writing=True) if exists else RunFolder.create(path, config_toml)
        steps = select(self._folder.read_records(), StepRecord)
        self._last = max((record.step for record in steps), default=0)

    def close(self) -> None:
        self._folder.close()

    def record(self, step: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Append the metrics of an optimizer step, unless a step that is repeated after a restart has them."""
        if step <= self._last:
            return
        tokens = metrics.get("tokens", 0.0)
        row = {
            "train/grad_norm": metrics["grad_norm"],
            "train/learning_rate": metrics["learning_rate"],
            "time/total_s": seconds,
        }
        if tokens:
            row["train/policy_loss"] = metrics["loss"] / tokens
        idle = IdleReason.SKIPPED if metrics["skipped"] else None if tokens else IdleReason.NO_TOKENS
        self._folder.append_metrics(StepRecord.of(step, EpisodeSource.DEMONSTRATIONS, row, idle=idle))
        self._last = step
