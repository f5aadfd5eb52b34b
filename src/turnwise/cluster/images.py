"""Send images between processes. Episodes and batches refer to them by content hash; the bytes are sent separately.

    replica --> driver: images of finished episodes that the run's store lacks, before the episodes count as finished
    driver --> ranks:   images of batches that the ranks lack, before the batches

Features are not sent: replicas and ranks compute them.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy

from turnwise.core.samples import Batch
from turnwise.core.trajectory import Trajectory
from turnwise.models.vision.encoder import hashes_in
from turnwise.pictures.image_store import MEMORY_BYTES, ImageStore


def shown_images(trajectories: Iterable[Trajectory]) -> set[str]:
    """Return the hashes of all images in the contexts of the episodes."""
    return {image.hash for trajectory in trajectories for turn in trajectory.turns for image in turn.images}


class EpisodeImages(ImageStore):
    """Images of a replica's episodes, until the driver has them.

    An episode puts every image that it shows, even one that the store has. So an image that was last put before the
    oldest running episode started belongs to no running episode, and can be forgotten.
    """

    def __init__(self) -> None:
        super().__init__()
        self._num_puts = 0
        self._last_put: dict[str, int] = {}

    def put(self, data: bytes) -> str:
        key = super().put(data)
        self._num_puts += 1
        self._last_put[key] = self._num_puts
        return key

    def mark(self) -> int:
        """Return the current position in the sequence of puts, for `forget_until`. Call it when an episode starts."""
        return self._num_puts

    def forget_until(self, mark: int) -> None:
        """Forget the images that were last put before the mark."""
        gone = [key for key, put in self._last_put.items() if put <= mark]
        for key in gone:
            del self._last_put[key]
        self.forget(gone)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedImages:
    """Images for learner ranks, as arrays: ranks read them in Ray's object store, of which a machine has one."""

    images: dict[str, numpy.ndarray]
    dropped: tuple[str, ...]
    """Hashes of images that the ranks no longer keep."""


class ImagePacker:
    """Packs the images of batches that the ranks lack, and tracks which ones they hold.

    Ranks hold up to MEMORY_BYTES of images, or all those of one call to `pack` if these are more. The images of the
    oldest calls are dropped first.
    """

    def __init__(self, store: ImageStore) -> None:
        self._store = store
        self._held: deque[tuple[frozenset[str], int]] = deque()
        """Hashes and bytes of the images of each call."""

    def pack(self, batches: Sequence[Batch]) -> PackedImages | None:
        """Return the images that the ranks need for the batches and do not hold; None if they hold all."""
        needed = set(chain.from_iterable(hashes_in(batch.ids) for batch in batches))
        missing = needed.difference(*(keys for keys, _ in self._held))
        if not missing:
            return None
        images = {key: self._store.get(key) for key in sorted(missing)}
        dropped = self._drop(needed, MEMORY_BYTES - sum(map(len, images.values())))
        self._held.append((frozenset(missing), sum(map(len, images.values()))))
        return PackedImages(
            images={key: numpy.frombuffer(data, numpy.uint8) for key, data in images.items()}, dropped=dropped
        )

    def _drop(self, needed: set[str], limit: int) -> tuple[str, ...]:
        """Drop the images of the oldest calls that have no needed one, down to `limit` bytes; return their hashes."""
        dropped: list[str] = []
        held, total = list(self._held), sum(size for _, size in self._held)
        for packed in held:
            keys, size = packed
            if total > limit and keys.isdisjoint(needed):
                self._held.remove(packed)
                dropped += keys
                total -= size
        return tuple(dropped)


class ReceivedImages(ImageStore):
    """Images that a learner rank received."""

    def __init__(self) -> None:
        super().__init__()
        self._received: dict[str, numpy.ndarray] = {}

    def receive(self, packed: PackedImages) -> None:
        for key in packed.dropped:
            del self._received[key]
        self._received |= packed.images

    def get(self, key: str) -> bytes:
        return self._received[key].tobytes()
