"""Labels of a run's episodes, good or bad, which a person gave: `labels.jsonl` in the run folder.

    {"evaluation": null, "step": 4, "group": 0, "member": 3, "label": "good", "digest": "...", "at": 1750000000.0}

The last line about an episode counts. Its digest is that of the stored episode: a resumed run may have replaced it. The
file is also a dataset: its episodes, with a reward of 1 for good and -1 for bad ones (`--data`), or the good ones as
demonstrations (`--demos`).
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError
from turnwise.core.trajectory import Status
from turnwise.files.disk import append_bytes, wrap_disk_errors
from turnwise.files.run_folders import CONFIG_FILE
from turnwise.record.jsonl import drop_partial_line, encode_row, read_jsonl
from turnwise.record.run_folder import RunFolder

LABELS_FILE = "labels.jsonl"
REWARD = "label"
"""Name of the reward of a labelled episode."""


class Label(StrEnum):
    GOOD = "good"
    BAD = "bad"
    NONE = "none"
    """The label was removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeKey:
    """What names an episode within its run."""

    evaluation: str | None
    step: int
    group: int
    member: int

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "EpisodeKey":
        """Return the key of a row of the index, of an episode or of a label."""
        return cls(evaluation=row.get("evaluation"), step=row["step"], group=row["group"], member=row["member"])

    def describe(self) -> str:
        of = "" if self.evaluation is None else f"evaluation {self.evaluation}, "
        return f"{of}step {self.step}, group {self.group}, member {self.member}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLabel:
    key: EpisodeKey
    label: Label
    digest: str


def digest_episode(line: bytes) -> str:
    """Return the digest of an episode's line in its file, without the newline."""
    return hashlib.blake2b(line, digest_size=16).hexdigest()


def append_label(run: Path, label: EpisodeLabel) -> None:
    """Write a label. One process at a time may: the studio, which has the queue of the folder."""
    key = label.key
    row = {
        "evaluation": key.evaluation,
        "step": key.step,
        "group": key.group,
        "member": key.member,
        "label": label.label.value,
        "digest": label.digest,
        "at": time.time(),
    }
    path = run / LABELS_FILE
    with wrap_disk_errors(path, "label the episode again"):
        drop_partial_line(path)
        append_bytes(path, encode_row(row) + b"\n")


def read_labels(run: Path) -> dict[EpisodeKey, EpisodeLabel]:
    """Return the labels that count, by episode; removed ones are left out."""
    labels: dict[EpisodeKey, EpisodeLabel] = {}
    path = run / LABELS_FILE
    for number, (_, row) in enumerate(read_jsonl(path), start=1):
        try:
            label = EpisodeLabel(key=EpisodeKey.of(row), label=Label(row["label"]), digest=str(row["digest"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} line {number} is not a label ({error!r}). Restore it, or delete it.") from error
        labels.pop(label.key, None)
        labels[label.key] = label
    return {key: label for key, label in labels.items() if label.label is not Label.NONE}


def count_labels(run: Path) -> Counter[str]:
    return Counter(label.label.value for label in read_labels(run).values())


def labelled_run(path: Path) -> Path | None:
    """Return the run whose labels a file has; None for another file."""
    return path.parent if path.name == LABELS_FILE and (path.parent / CONFIG_FILE).is_file() else None


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
    turns = [
        {**turn, "reward": each, "turn_reward": each}
        for number, turn in enumerate(row["turns"])
        for each in [reward if number == last else 0.0]
    ]
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
