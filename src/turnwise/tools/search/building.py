"""Builds an index from files: written aside, its manifest last, then renamed."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.models.saving import written_aside
from turnwise.tools.search.left_out import LeftOut
from turnwise.tools.search.lexical import LexicalIndex
from turnwise.tools.search.manifest import DenseSettings, Manifest, sizes_of, write_manifest
from turnwise.tools.search.passages import PASSAGE_CHARACTERS, Passage
from turnwise.tools.search.reading import digest_of, find_files, read_passages
from turnwise.tools.search.store import StoredPassages, write_passages

Show = Callable[[str, int, int], None]
"""(what is done, how many are done, of how many)."""


def build_index(
    given: Sequence[Path],
    to: Path,
    *,
    dense: DenseSettings | None = None,
    passage_characters: int = PASSAGE_CHARACTERS,
    show: Show = lambda phase, done, total: None,
    left_out: LeftOut | None = None,
) -> Manifest:
    """Reads files and folders and leaves the new folder `to`. A build that is killed leaves nothing that is loaded.

    `left_out`: is told of what could not be read.
    """
    if to.exists():
        raise UserError(f"{to} exists: choose another folder, or remove it first")
    left_out = LeftOut() if left_out is None else left_out
    files = find_files(given, left_out)
    digest = digest_of(files)
    vectors = _vectors_writer(dense, show) if dense is not None else None  # first: an encoder may not be there
    try:
        with written_aside(to) as aside:
            count = write_passages(_read(files, passage_characters, show, left_out), aside)
            if not count:
                raise UserError(f"there is no text in {', '.join(map(str, given))}: give other files")
            stored = StoredPassages(aside)
            show("ranking words", 0, count)
            LexicalIndex.build(passage.words for passage in stored).save(aside)
            show("ranking words", count, count)
            if vectors is not None:
                vectors(stored, aside)
            manifest = Manifest(
                passages=count,
                files=len(files) - len(left_out.empty),
                digest=digest,
                passage_characters=passage_characters,
                dense=dense,
                sizes=sizes_of(aside),
            )
            write_manifest(manifest, aside)
    except FileExistsError as error:
        raise UserError(f"{to} exists: choose another folder, or remove it first") from error
    return manifest


def _read(files: Sequence[Path], limit: int, show: Show, left_out: LeftOut) -> Iterator[Passage]:
    for done, file in enumerate(files):
        show("reading", done, len(files))
        yield from read_passages(file, limit, left_out)
    show("reading", len(files), len(files))


def _vectors_writer(settings: DenseSettings, show: Show) -> Callable[[StoredPassages, Path], None]:
    from turnwise.tools.search.dense import Encoder, best_device, write_vectors

    encoder = Encoder(settings.model, best_device())

    def write(stored: StoredPassages, folder: Path) -> None:
        write_vectors(
            (settings.passage_prefix + passage.whole for passage in stored),
            count=len(stored),
            encoder=encoder,
            folder=folder,
            dtype=settings.dtype,
            show=lambda done: show("encoding", done, len(stored)),
        )

    return write
