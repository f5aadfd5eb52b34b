"""Opens what a recipe names: an index of this machine, or a server. Loaded when it is needed: numpy takes its time."""

from functools import lru_cache
from pathlib import Path

from turnwise.tools.search.hits import Searcher
from turnwise.tools.search.index import open_index
from turnwise.tools.search.manifest import MANIFEST, Mode, read_manifest
from turnwise.tools.search.remote import RemoteIndex, read_key


def open_folder(folder: Path, mode: Mode | None) -> Searcher:
    """Once a process, however many tools search it; one that was built anew is another."""
    read_manifest(folder)
    return _opened(folder.resolve(), mode, (folder / MANIFEST).stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _opened(folder: Path, mode: Mode | None, written: int) -> Searcher:
    return open_index(folder, mode)


def open_url(url: str, key_env: str | None) -> Searcher:
    return RemoteIndex(url, read_key(url, key_env))
