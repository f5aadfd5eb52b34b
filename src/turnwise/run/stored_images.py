"""Images of stored episodes: checked before anything is trained on them, then copied into the run's images/ folder.

A source has an image once as HASH.png, in its folder images/ or in the one beside it. The ids of an episode name its
images (`core/images.py`), so an image belongs to an episode if its bytes have the hash, and a model can be trained on
it if its own processor gives the image the recorded ids.
"""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from turnwise.algos.estimators import AwacSettings
from turnwise.config.schema import Config
from turnwise.core.errors import EnvironmentFailure, UserError
from turnwise.core.images import find_images
from turnwise.core.trajectory import Trajectory, Turn
from turnwise.models.vision.processor import ImageProcessor
from turnwise.pictures.image_store import image_file, read_image_file
from turnwise.record.images import IMAGES_FOLDER

CACHED_IMAGES = 1024
"""Images whose ids are remembered between episodes."""


def find_images_folder(folder: Path) -> Path:
    """Return the images/ folder of a source's folder, or that of a run whose trajectories/ it is."""
    inside, beside = folder / IMAGES_FOLDER, folder.absolute().parent / IMAGES_FOLDER
    return beside if beside.is_dir() and not inside.is_dir() else inside


class StoredImages:
    """Images of the episodes of all sources. Equal images of different sources are kept once."""

    def __init__(self, processor: ImageProcessor | None) -> None:
        """`processor`: that of the model; None if it reads text only."""
        self._processor = processor
        self._files: dict[str, Path] = {}
        self._ids = lru_cache(maxsize=CACHED_IMAGES)(self._read_ids)

    def check(self, trajectory: Trajectory, folder: Path, where: str) -> None:
        """Raise UserError unless every image is in the folder and has the ids that the model's processor gives it."""
        for number, turn in enumerate(trajectory.turns, start=1):
            if turn.images or min(turn.context_ids, default=0) < 0:
                try:
                    self._check_turn(turn, folder)
                except UserError as error:
                    raise UserError(f"{where}: turn {number}: {error}") from error

    def _check_turn(self, turn: Turn, folder: Path) -> None:
        if self._processor is None:
            raise UserError("The episode has images, and the model reads text only. Give the model that recorded them.")
        if turn.images != find_images(turn.context_ids):
            raise UserError("The episode's list of images is not that of its ids. Restore the file from a copy.")
        for span in turn.images:
            file = image_file(folder, span.hash)
            recorded, given = turn.context_ids[span.start : span.end], self._ids(file)
            if recorded != given:
                raise UserError(
                    f"The image {file} has {len(recorded)} ids, and not the {len(given)} that this model's processor "
                    "gives it. Give the model that recorded it."
                )
            self._files[span.hash] = file

    def _read_ids(self, file: Path) -> tuple[int, ...]:
        """Return the ids from the first token of an image to its last one."""
        assert self._processor is not None
        try:
            ids = self._processor.preview_ids(read_image_file(file))
        except EnvironmentFailure as error:
            raise UserError(f"The image {file} cannot be shown: {error}. Remove the episode.") from error
        (span,) = find_images(ids)
        return ids[span.start : span.end]

    def keep(self, hashes: Iterable[str] | None = None) -> None:
        """Put the images with these hashes, or all that were checked, into the store of the model's processor."""
        for key in sorted(self._files.keys() if hashes is None else self._files.keys() & set(hashes)):
            assert self._processor is not None
            self._processor.store.put(read_image_file(self._files[key]))


def check_sampler_reads_images(trajectory: Trajectory, config: Config, where: str) -> None:
    """Raise UserError if the method samples answers to stored states with images, and the engine reads text only."""
    if not any(turn.images for turn in trajectory.turns):
        return
    if isinstance(config.algo.estimator, AwacSettings) and not config.engine.reads_images:
        raise UserError(
            f"{where} has images, and engine {config.engine.kind} with these settings reads text only. Choose "
            "algo.estimator archer_offline, which samples nothing."
        )
