"""Build a search index from files. The folder is written aside, its manifest last, and then renamed."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.files.disk import atomic_folder
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
"""Called with (phase, done, total)."""


def build_index(
    paths: Sequence[Path],
    to: Path,
    *,
    dense: DenseSettings | None = None,
    passage_characters: int = PASSAGE_CHARS,
    progress: Progress = lambda phase, done, total: None,
    skipped: SkippedFiles | None = None,
) -> Manifest:
    """Index files and folders into the new folder `to`. A build that is killed leaves no folder that can be opened.

    `skipped` collects the files that could not be read.
    """
    if to.exists():
        raise _folder_exists(to)
    skipped = SkippedFiles() if skipped is None else skipped
    files = find_files(paths, skipped)
    digest = hash_files(files)
    write_dense = _dense_writer(dense, progress) if dense is not None else None  # first, as the encoder may be missing
    try:
        with atomic_folder(to) as folder:
            count = write_passages(_read_files(files, passage_characters, progress, skipped), folder)
            if not count:
                raise UserError(f"There is no text in {', '.join(map(str, paths))}: give other files.")
            passages = StoredPassages(folder)
            progress("lexical index", 0, count)
            LexicalIndex.build(passage.lexical_text for passage in passages).save(folder)
            progress("lexical index", count, count)
            if write_dense is not None:
                write_dense(passages, folder)
            manifest = Manifest(
                passages=count,
                files=len(files) - len(skipped.empty),
                digest=digest,
                passage_characters=passage_characters,
                dense=dense,
                sizes=file_sizes(folder),
            )
            write_manifest(manifest, folder)
    except FileExistsError as error:
        raise _folder_exists(to) from error
    return manifest


def _folder_exists(folder: Path) -> UserError:
    return UserError(f"{folder} exists: choose another folder, or remove it first.")


def _read_files(files: Sequence[Path], limit: int, progress: Progress, skipped: SkippedFiles) -> Iterator[Passage]:
    for done, file in enumerate(files):
        progress("reading", done, len(files))
        yield from read_passages(file, limit, skipped)
    progress("reading", len(files), len(files))


def _dense_writer(settings: DenseSettings, progress: Progress) -> Callable[[StoredPassages, Path], None]:
    """Load the encoder and return a function that encodes passages into a folder."""
    from turnwise.tools.search.dense import Encoder, best_device, write_vectors

    encoder = Encoder(settings.model, best_device())

    def write(passages: StoredPassages, folder: Path) -> None:
        write_vectors(
            (settings.passage_prefix + passage.full_text for passage in passages),
            count=len(passages),
            encoder=encoder,
            folder=folder,
            dtype=settings.dtype,
            progress=lambda done: progress("encoding", done, len(passages)),
        )

    return write
