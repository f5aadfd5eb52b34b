"""Read documents (.txt, .md, .html, .jsonl) and split them into passages."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from turnwise.core.errors import UserError, not_a_file
from turnwise.files.disk import check_readable
from turnwise.text.truncation import one_line
from turnwise.tools.search.html_text import read_html
from turnwise.tools.search.types import MAX_TITLE_CHARS, Passage, clean_text

MAX_FILE_BYTES = 256 << 20
"""Maximum size of a file that is read as a whole."""
MAX_LINE_BYTES = 16 << 20
"""Maximum length of a line of a JSONL file. The number of lines is unlimited."""
HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t#]*$")
PARAGRAPH = re.compile(r"\n\s*\n")
BREAKS = (". ", "! ", "? ", "\n", "; ", ", ", " ")
"""Separators at which a long paragraph may be cut, best first."""

Sections = tuple[str, list[tuple[str, str]]]
"""Title of a document, and (heading, text) of each section."""


MAX_NAMES = 3
"""File names per category in the summary."""


@dataclass(slots=True)
class SkippedFiles:
    """Files that are missing from an index, in full or in part. Filled while files are found and read."""

    unsupported: list[Path] = field(default_factory=list)
    """In a folder, with an unsupported suffix."""
    outside: list[Path] = field(default_factory=list)
    """Links to targets outside of the folder."""
    special: list[Path] = field(default_factory=list)
    """Pipes, sockets, broken links."""
    empty: list[Path] = field(default_factory=list)
    """Without text."""
    not_utf8: list[Path] = field(default_factory=list)
    """Read in part: undecodable characters are replaced."""

    def summary(self) -> str:
        """One line; empty if nothing was skipped."""
        return "; ".join(self._summarize())

    def _summarize(self) -> Iterator[str]:
        if self.unsupported:
            yield f"skipped {_list_names(self.unsupported)}: not {', '.join(SUFFIXES)}"
        if self.outside:
            yield f"skipped {_list_names(self.outside)}: links out of the folder, give the target's own path"
        if self.special:
            yield f"skipped {_list_names(self.special)}: not regular files"
        if self.empty:
            yield f"skipped {_list_names(self.empty)}: no text"
        if self.not_utf8:
            yield f"read in part {_list_names(self.not_utf8)}: not UTF-8, convert to UTF-8"


def _list_names(files: Sequence[Path]) -> str:
    names = ", ".join(
        "".join(letter if letter.isprintable() else "?" for letter in file.name) for file in files[:MAX_NAMES]
    )
    return f"{len(files):,} file{'s' * (len(files) > 1)} ({names}{', ...' * (len(files) > MAX_NAMES)})"


def _read_text(content: str) -> Sections:
    return "", [("", content)]


def _read_markdown(content: str) -> Sections:
    """Split at headings outside of fenced code. The first heading is the title."""
    sections: list[tuple[str, list[str]]] = [("", [])]
    fenced = False
    for line in content.splitlines():
        fenced ^= line.lstrip().startswith(("```", "~~~"))
        heading = None if fenced else HEADING.match(line)
        if heading:
            sections.append((heading[1].strip(), []))
        else:
            sections[-1][1].append(line)
    title = next((heading for heading, _ in sections if heading), "")
    return title, [(heading, "\n".join(lines)) for heading, lines in sections]


READERS: dict[str, Callable[[str], Sections]] = {
    ".txt": _read_text,
    ".md": _read_markdown,
    ".html": read_html,
    ".htm": read_html,
}
SUFFIXES = (*READERS, ".jsonl")


def find_files(paths: Sequence[Path], skipped: SkippedFiles | None = None) -> list[Path]:
    """List the files to read, those of folders in sorted order.

    `skipped` collects the files in folders that cannot be read, except hidden ones.
    """
    files: dict[Path, None] = {}
    for path in paths:
        check_readable(path)
        if path.is_dir():
            files |= dict.fromkeys(_find_in_folder(path, skipped or SkippedFiles()))
        elif path.is_file():
            _check_suffix(path)
            files[path] = None
        else:
            raise UserError(f"{not_a_file(path)}: give files or folders to index.")
    if not files:
        raise UserError(f"No {', '.join(SUFFIXES)} file in {', '.join(map(str, paths))}: give files to index.")
    return list(files)


def _find_in_folder(folder: Path, skipped: SkippedFiles) -> Iterator[Path]:
    """List a folder. Links out of it are not followed: the owner may not mean to share their targets."""
    root = Path(os.path.realpath(folder))
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
            category = skipped.outside
        elif path.is_dir():
            continue
        elif not path.is_file():
            category = skipped.special
        elif path.suffix.lower() not in SUFFIXES:
            category = skipped.unsupported
        else:
            yield path
            continue
        if not _is_hidden(path, folder):
            category.append(path)


def _is_hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _check_suffix(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path} is not one of {', '.join(SUFFIXES)}: convert it, or rename it if it is plain text.")


def hash_files(files: Sequence[Path]) -> str:
    """Hash the contents in order."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        try:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "blake2b").digest())
        except OSError as error:
            raise _unreadable(file, error) from error
    return digest.hexdigest()


def read_passages(file: Path, limit: int, skipped: SkippedFiles | None = None) -> Iterator[Passage]:
    """Read the passages of a file, each of at most `limit` characters besides its title.

    `skipped` collects the file if it has no text or is not UTF-8.
    """
    any_file = False
    for passage in _split_file(file, limit, skipped):
        any_file = True
        yield passage
    if not any_file and skipped is not None:
        skipped.empty.append(file)


def _split_file(file: Path, limit: int, skipped: SkippedFiles | None) -> Iterator[Passage]:
    if file.suffix.lower() == ".jsonl":
        yield from _read_jsonl(file, limit)
        return
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise UserError(f"{file} is larger than {MAX_FILE_BYTES >> 20} MiB: split it, or give it as JSONL.")
        content = file.read_bytes()
    except OSError as error:
        raise _unreadable(file, error) from error
    title, sections = READERS[file.suffix.lower()](_decode(content, file, skipped))
    number = 0
    for heading, text in sections:
        passage_title = _join_title(title or file.stem, heading)
        for piece in split_text(clean_text(text), limit):
            yield Passage(title=passage_title, text=piece, id=f"{file.name}#{number}")
            number += 1


def _decode(content: bytes, file: Path, skipped: SkippedFiles | None) -> str:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = content.decode("utf-8", "replace")
        if skipped is not None:
            skipped.not_utf8.append(file)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _join_title(document: str, heading: str) -> str:
    joined = document if heading in ("", document) else f"{document} > {heading}"
    return one_line(clean_text(joined))[:MAX_TITLE_CHARS]


def _read_jsonl(file: Path, limit: int) -> Iterator[Passage]:
    try:
        with file.open("rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE_BYTES + 1), b""), start=1):
                if len(line) > MAX_LINE_BYTES:
                    raise UserError(f"{file} line {number} is longer than {MAX_LINE_BYTES >> 20} MiB: split it.")
                if line.strip():
                    yield from _split_row(line, number, file, limit)
    except OSError as error:
        raise _unreadable(file, error) from error


def _split_row(line: bytes, number: int, file: Path, limit: int) -> Iterator[Passage]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} line {number} is not valid JSON ({str(error)[:80]}): correct it.") from error
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise UserError(f'{file} line {number} has no text: give it {{"text": "...", "title": "..."}}.')
    title, identifier = row.get("title"), row.get("id")
    passage_title = one_line(clean_text(str(title)))[:MAX_TITLE_CHARS] if title is not None else file.stem
    passage_id = (
        one_line(clean_text(str(identifier)))[:MAX_TITLE_CHARS] if identifier is not None else f"{file.name}#{number}"
    )
    for piece in split_text(clean_text(row["text"]), limit):
        yield Passage(title=passage_title, text=piece, id=passage_id)


def _unreadable(file: Path, error: OSError) -> UserError:
    return UserError(f"Cannot read {file} ({error.strerror or type(error).__name__}): make it readable.")


def split_text(text: str, limit: int) -> Iterator[str]:
    """Join paragraphs up to `limit` characters; cut longer ones at the end of a sentence if possible.

    Only white space between pieces is lost, and nothing is repeated.
    """
    piece = ""
    for paragraph in filter(None, map(str.strip, PARAGRAPH.split(text))):
        if piece and len(piece) + 2 + len(paragraph) > limit:
            yield piece
            piece = ""
        *full, rest = _cut_paragraph(paragraph, limit)
        yield from full
        piece = f"{piece}\n\n{rest}" if piece else rest
    if piece:
        yield piece


def _cut_paragraph(text: str, limit: int) -> list[str]:
    pieces, start = [], 0
    while len(text) - start > limit:
        end = _find_break(text, start, limit)
        if piece := text[start:end].strip():
            pieces.append(piece)
        start = end
    return [*pieces, text[start:].strip()]


def _find_break(text: str, start: int, limit: int) -> int:
    """End of the piece that starts at `start`: in its second half, so that no piece is tiny."""
    for mark in BREAKS:
        position = text.rfind(mark, start + limit // 2, start + limit)
        if position >= 0:
            return position + len(mark)
    return start + limit
