"""Episodes with a label: a dataset whose rewards are the labels."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError
from turnwise.core.trajectory import Status
from turnwise.record.jsonl import read_jsonl
from turnwise.record.labels import LABELS_FILE, EpisodeKey, Label, digest_episode, read_labels
from turnwise.record.run_folder import RunFolder

REWARD = "label"
"""Name of the reward of a labelled episode."""


def read_labelled(run: Path, *labels: Label) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the episodes with one of these labels, and where each is stored.

    The reward is that of the label, at the end of the episode; a good episode succeeded and a bad one failed.
    """
    folder = RunFolder.open(run)
    entries = {EpisodeKey.of(row): row for _, row in read_jsonl(folder.index_path)}
    for key, label in read_labels(run).items():
        if label.label not in labels:
            continue
        where = f"{run / LABELS_FILE}: {key.describe()}"
        line = _read_line(folder, entries[key]) if key in entries else None
        if line is None or digest_episode(line) != label.digest:
            raise UserError(f"{where} is no longer the episode that was labelled. Label it again, or remove its label.")
        yield where, with_reward(json.loads(line), label.label)


def with_reward(row: Mapping[str, Any], label: Label) -> dict[str, Any]:
    """Return the episode with the label as its only reward."""
    reward, last = (1.0 if label is Label.GOOD else -1.0), len(row["turns"]) - 1
    turns = []
    for number, turn in enumerate(row["turns"]):
        turn_reward = reward if number == last else 0.0
        turns.append({**turn, "reward": turn_reward, "turn_reward": turn_reward})
    status = Status.SUCCEEDED if label is Label.GOOD else Status.FAILED
    return {**row, "status": status.value, "reward": reward, "rewards": {REWARD: reward}, "turns": turns}


def _read_line(folder: RunFolder, entry: Mapping[str, Any]) -> bytes | None:
    """Return the stored line of an entry of the index; None if its file is gone."""
    try:
        with folder.trajectories_path(entry["step"], entry.get("evaluation")).open("rb") as file:
            file.seek(entry["offset"])
            return file.read(entry["length"])
    except FileNotFoundError:
        return None
