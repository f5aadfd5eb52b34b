"""A run's numbers on their way to trackers, besides its folder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from turnwise.config.schema import Config
from turnwise.record.run_folder import RunFolder
from turnwise.record.trackers import Trackers


@contextmanager
def tracked(config: Config, folder: RunFolder, tell: Callable[[str], None], *, after: int | None) -> Iterator[None]:
    """All rows that are written from here on. `after`: the last step that a resumed run kept; None: it begins."""
    if not config.record.trackers:
        yield
        return
    settings = config.model_dump(mode="json")
    trackers = Trackers(
        config.record.trackers,
        config=settings,
        name=folder.path.name,
        folder=folder.path,
        tell=tell,
        resumed_after=after,
    )
    folder.follower = trackers.log
    try:
        yield
    finally:
        folder.follower = None
        trackers.close()
