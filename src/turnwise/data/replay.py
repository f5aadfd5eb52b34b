"""Replay buffer: trajectories on disk with their exact ids and log-probabilities, sampled by episode, pair or group.

    replay/
        part_000000/
            ids.bin         int64: context and action ids of every turn, one trajectory after the other
            logprobs.bin    float32: log-probability of every sampled token; NaN: not known yet
            entries.jsonl   one line per trajectory, written after its arrays
        part_000001/        later trajectories

The arrays are memory-mapped, so a buffer may be larger than memory. It holds the newest `capacity` trajectories. A kill
leaves at most a partial line and arrays without a line, which the next `Replay` removes: the complete lines say exactly
what was added. What is drawn depends on the contents and on a key alone, not on earlier draws.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.core.errors import UserError
from turnwise.core.images import MAX_IMAGE_TOKENS, image_of_token
from turnwise.core.random_streams import address, random_stream
from turnwise.core.trajectory import Group, Trajectory
from turnwise.data.replay_files import (
    Entry,
    Logprobs,
    Part,
    hash_trajectory,
    part_numbers,
    put_arrays,
    take_arrays,
)
from turnwise.files.disk import remove_folder, remove_leftovers

PARTS = 8
"""Parts that a full buffer is split into: the disk holds up to one of them more than the capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCodec:
    """Trajectories <-> JSON rows; a turn's row has `context_ids`, `action_ids` and `action_logprobs`."""

    to_row: Callable[[Trajectory], dict[str, Any]]
    from_row: Callable[[Mapping[str, Any]], Trajectory]


class Replay:
    """The newest `capacity` trajectories in a folder. One process writes; the folder belongs to a run that is locked.

    `add` ignores what the buffer already has: the same episode again, say from a run that is named twice.
    """

    def __init__(self, folder: Path, *, capacity: int, codec: RowCodec) -> None:
        """Open the buffer, or create an empty one. Removes what a killed process left half written."""
        self.folder, self.capacity, self.codec = folder, capacity, codec
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        self._parts = {number: Part(folder / f"part_{number:06d}", number) for number in part_numbers(folder)}
        for number in [number for number, part in self._parts.items() if not part.entries]:
            self._remove(number)  # killed before its first trajectory
        self._load()

    def _load(self) -> None:
        self._all = [entry for number in sorted(self._parts) for entry in self._parts[number].entries]
        self._known = {entry.digest for entry in self._all}
        self._forget()

    def _forget(self) -> None:
        """Drop what was derived from the entries."""
        for name in ("entries", "groups"):
            self.__dict__.pop(name, None)

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def entries(self) -> Sequence[Entry]:
        """The newest `capacity` trajectories, oldest first."""
        return self._all[-self.capacity :]

    @cached_property
    def groups(self) -> Mapping[int, Sequence[Entry]]:
        """The entries by group, in the order of their first one."""
        groups: dict[int, list[Entry]] = {}
        for entry in self.entries:
            groups.setdefault(entry.group, []).append(entry)
        return groups

    def add(
        self, trajectory: Trajectory, *, step: int = 0, source: str = "", sampled: bool = True, scored: bool = True
    ) -> bool:
        """Append a trajectory; return False if the buffer has it already, or if nothing of it was sampled.

        One that was not sampled by a policy has unknown log-probabilities: NaN until `set_logprobs`.
        """
        if not trajectory.num_sampled:
            return False
        row = self.codec.to_row(trajectory)
        ids, logprobs = take_arrays(row)
        digest = hash_trajectory(row, ids, logprobs if sampled else None)
        if digest in self._known:
            return False
        if not sampled:
            logprobs = np.full_like(logprobs, math.nan)
        task = trajectory.task
        head = {
            "step": step,
            "source": source,
            "sampled": sampled,
            "scored": scored,
            "group": address("replay group", *task.parts),
            "succeeded": trajectory.status.succeeded,
            "total_reward": trajectory.total_reward,
            "turns": len(trajectory.turns),
            "tokens": len(ids),
            "num_sampled": len(logprobs),
            "digest": digest,
        }
        entry = self._open_part().append(head, row, ids, logprobs)
        self._all.append(entry)
        self._known.add(digest)
        self._forget()
        return True

    def _open_part(self) -> Part:
        """Return the part to append to: a new one when the last is full."""
        newest = max(self._parts, default=-1)
        if newest >= 0 and len(self._parts[newest].entries) < max(1, self.capacity // PARTS):
            return self._parts[newest]
        folder = self.folder / f"part_{newest + 1:06d}"
        folder.mkdir()
        self._parts[newest + 1] = Part(folder, newest + 1)
        return self._parts[newest + 1]

    def discard_from(self, step: int) -> None:
        """Remove what was added at `step` and later, so that a resumed run can add it again."""
        for number in sorted(self._parts, reverse=True):
            part = self._parts[number]
            kept = next((index for index, entry in enumerate(part.entries) if entry.step >= step), len(part.entries))
            part.truncate(kept)
            if not kept:
                self._remove(number)
        self._load()

    def prune(self, step: int) -> None:
        """Delete parts that the buffer will not need, even if a run resumes from its checkpoint after `step`."""
        total = sum(entry.step <= step for entry in self._all)
        behind = 0
        for number in sorted(self._parts):
            behind += len(self._parts[number].entries)
            if behind > total - self.capacity:
                break
            self._remove(number)
        self._load()

    def _remove(self, number: int) -> None:
        """Delete a part; it is renamed first, so that a kill leaves it whole or not at all."""
        remove_folder(self._parts.pop(number).folder)

    def read(self, entry: Entry) -> Trajectory:
        """Return the trajectory. Raise UserError if its bytes have changed since they were written."""
        return self.codec.from_row(self._read_row(entry))

    def _read_row(self, entry: Entry) -> dict[str, Any]:
        part = self._parts[entry.part]
        ids, logprobs = part.arrays(entry)
        row: dict[str, Any] = part.read_line(entry)["row"]
        if hash_trajectory(row, ids, logprobs if entry.sampled else None) != entry.digest:
            raise UserError(f"{part.folder} line {entry.line} has changed since it was written. Delete {self.folder}.")
        put_arrays(row, ids, logprobs)
        return row

    def find_images(self) -> set[str]:
        """Return the hashes of the images in the contexts of the buffer."""
        images: set[str] = set()
        for entry in self.entries:
            codes = -1 - self._parts[entry.part].arrays(entry)[0]
            first = codes[(codes >= 0) & (codes % MAX_IMAGE_TOKENS == 0)]  # of each image's tokens
            images.update(image_of_token(-1 - code)[0] for code in np.unique(first).tolist())
        return images

    def read_logprobs(self, entry: Entry) -> Logprobs:
        return self._parts[entry.part].arrays(entry)[1]

    def set_logprobs(self, entry: Entry, logprobs: Sequence[float]) -> None:
        """Store the reference's log-probabilities of a trajectory that was not sampled."""
        if entry.sampled or len(logprobs) != entry.num_sampled:
            raise ValueError(f"{entry.source}: {len(logprobs)} log-probabilities for {entry.num_sampled} tokens")
        self._parts[entry.part].write_logprobs(entry, np.asarray(logprobs, dtype=np.float32))

    def sample(self, count: int, *key: Any) -> list[Entry]:
        """Draw `count` different trajectories, or all if there are fewer. `key` addresses the randomness."""
        entries = self.entries
        return random_stream("replay", *key).sample(entries, min(count, len(entries)))

    def sample_groups(self, count: int, size: int, *key: Any, smallest: int = 2) -> list[list[Entry]]:
        """Draw `count` groups of at least `smallest` members, and up to `size` members of each."""
        random = random_stream("replay groups", *key)
        large = [members for members in self.groups.values() if len(members) >= smallest]
        chosen = random.sample(large, min(count, len(large)))
        return [random.sample(members, min(size, len(members))) for members in chosen]

    def sample_pairs(self, count: int, *key: Any) -> list[tuple[Entry, Entry]]:
        """Draw groups, and from each two members whose rewards differ, the better one first."""
        random = random_stream("replay pairs", *key)
        varied = [group for group in self.groups.values() if has_pair(group)]
        return [_draw_pair(random, group) for group in random.sample(varied, min(count, len(varied)))]

    def read_group(self, members: Iterable[Entry]) -> Group:
        """Return trajectories of one task as a group."""
        trajectories = tuple(self.read(entry) for entry in members)
        return Group(task=trajectories[0].task, trajectories=trajectories)


def has_pair(members: Sequence[Entry]) -> bool:
    """Return whether two members have different rewards."""
    rewards = [member.total_reward for member in members]
    return max(rewards) > min(rewards)


def _draw_pair(random: Any, members: Sequence[Entry]) -> tuple[Entry, Entry]:
    first = random.choice([member for member in members if any(has_pair((member, other)) for other in members)])
    second = random.choice([member for member in members if has_pair((first, member))])
    return (first, second) if first.total_reward > second.total_reward else (second, first)
