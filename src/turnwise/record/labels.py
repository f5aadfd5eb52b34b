"""Labels of a run's episodes, good or bad, which a person gave: `labels.jsonl` in the run folder.

    {"evaluation": null, "step": 4, "group": 0, "member": 3, "label": "good", "digest": "...", "at": 1750000000.0}

The last line about an episode counts. Its digest is that of the stored episode: a resumed run may have replaced it. The
file is also a dataset: its episodes, with a reward of 1 for good and -1 for bad ones (`--data`), or the good ones as
demonstrations (`--demos`).
"""

import hashlib
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError
from turnwise.files.disk import append_bytes, wrap_disk_errors
from turnwise.files.run_folders import CONFIG_FILE
from turnwise.record.jsonl import drop_partial_line, encode_row, read_jsonl

LABELS_FILE = "labels.jsonl"


class Label(StrEnum):
    GOOD = "good"
    BAD = "bad"
    NONE = "none"
    """The label was removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeKey:
    """Address of an episode within its run."""

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
