"""Builds an index from files: written aside, its manifest last, then renamed."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.models.loading.save import atomic_folder
from turnwise.tools.search.documents import SkippedFiles, find_files, hash_files, read_passages
from turnwise.tools.search.lexical import LexicalIndex
from turnwise.tools.search.storage import (
    DenseSettings,
    Manifest,
    StoredPassages,
    file_sizes,
    write_manifest,
    write_passages,
)
from turnwise.tools.search.types import PASSAGE_CHARS, Passage

Progress = Callable[[str, int, int], None]
"""(what is done, how many are done, of how many)."""


def build_index(
    given: Sequence[Path],
    to: Path,
    *,
    dense: DenseSettings | None = None,
    passage_characters: int = PASSAGE_CHARS,
    show: Progress = lambda phase, done, total: None,
    skipped: SkippedFiles | None = None,
) -> Manifest:
    """Reads files and folders and leaves the new folder `to`. A build that is killed leaves nothing that is loaded.

    `skipped`: is told of what could not be read.
    """
    if to.exists():
        raise UserError(f"{to} exists: choose another folder, or remove it first")
    skipped = SkippedFiles() if skipped is None else skipped
    files = find_files(given, skipped)
    digest = hash_files(files)
    vectors = _vectors_writer(dense, show) if dense is not None else None  # first: an encoder may not be there
    try:
        with atomic_folder(to) as aside:
            count = write_passages(_read(files, passage_characters, show, skipped), aside)
            if not count:
                raise UserError(f"there is no text in {', '.join(map(str, given))}: give other files")
            stored = StoredPassages(aside)
            show("ranking words", 0, count)
            LexicalIndex.build(passage.lexical_text for passage in stored).save(aside)
            show("ranking words", count, count)
            if vectors is not None:
                vectors(stored, aside)
            manifest = Manifest(
                passages=count,
                files=len(files) - len(skipped.empty),
                digest=digest,
                passage_characters=passage_characters,
                dense=dense,
                sizes=file_sizes(aside),
            )
            write_manifest(manifest, aside)
    except FileExistsError as error:
        raise UserError(f"{to} exists: choose another folder, or remove it first") from error
    return manifest


def _read(files: Sequence[Path], limit: int, show: Progress, skipped: SkippedFiles) -> Iterator[Passage]:
    for done, file in enumerate(files):
        show("reading", done, len(files))
        yield from read_passages(file, limit, skipped)
    show("reading", len(files), len(files))


def _vectors_writer(settings: DenseSettings, show: Progress) -> Callable[[StoredPassages, Path], None]:
    from turnwise.tools.search.dense import Encoder, best_device, write_vectors

    encoder = Encoder(settings.model, best_device())

    def write(stored: StoredPassages, folder: Path) -> None:
        write_vectors(
            (settings.passage_prefix + passage.full_text for passage in stored),
            count=len(stored),
            encoder=encoder,
            folder=folder,
            dtype=settings.dtype,
            show=lambda done: show("encoding", done, len(stored)),
        )

    return write
