"""Passages from files: txt, md, html and jsonl; a folder stands for all such files in it."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.tools.search.html_text import read_html
from turnwise.tools.search.types import MAX_TITLE_CHARS, Passage, clean_text, one_line

MAX_FILE_BYTES = 256 << 20
"""Of a file that is read whole."""
LONGEST_LINE = 16 << 20
"""Of a JSONL file, whose number of lines has no limit."""
HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t#]*$")
PARAGRAPH = re.compile(r"\n\s*\n")
ENDS = (". ", "! ", "? ", "\n", "; ", ", ", " ")
"""Where a long paragraph may be cut, the best places first."""

Sections = tuple[str, list[tuple[str, str]]]
"""A document: its title, and (heading, text) of each part."""


NAMED = 3
"""Files that are told by their name."""


@dataclass(slots=True)
class SkippedFiles:
    """Filled while files are found and read."""

    unknown: list[Path] = field(default_factory=list)
    """In a folder, with an ending that is not read."""
    outside: list[Path] = field(default_factory=list)
    """Links to what is not in the folder."""
    special: list[Path] = field(default_factory=list)
    """Pipes, sockets, links to nothing."""
    empty: list[Path] = field(default_factory=list)
    """Without any text."""
    foreign: list[Path] = field(default_factory=list)
    """Not in UTF-8: what could not be read in them is missing."""

    def told(self, suffixes: Sequence[str]) -> str:
        """One line; empty where nothing is missing."""
        return "; ".join(self._parts(suffixes))

    def _parts(self, suffixes: Sequence[str]) -> Iterator[str]:
        if self.unknown:
            yield f"left out {_named(self.unknown)}: not {', '.join(suffixes)}"
        if self.outside:
            yield f"left out {_named(self.outside)}: links out of the folder, give what they point at by its own path"
        if self.special:
            yield f"left out {_named(self.special)}: no plain files"
        if self.empty:
            yield f"left out {_named(self.empty)}: no text"
        if self.foreign:
            yield f"read in part {_named(self.foreign)}: not UTF-8, save as UTF-8"


def _named(files: Sequence[Path]) -> str:
    names = ", ".join(
        "".join(letter if letter.isprintable() else "?" for letter in file.name) for file in files[:NAMED]
    )
    return f"{len(files):,} file{'s' * (len(files) > 1)} ({names}{', ...' * (len(files) > NAMED)})"


def _text(content: str) -> Sections:
    return "", [("", content)]


def _markdown(content: str) -> Sections:
    """Headings begin sections, but not within fenced code; the first of them is the title."""
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
    ".txt": _text,
    ".md": _markdown,
    ".html": read_html,
    ".htm": read_html,
}
SUFFIXES = (*READERS, ".jsonl")


def find_files(given: Sequence[Path], skipped: SkippedFiles | None = None) -> list[Path]:
    """The files to read, those of folders in an order that does not depend on the machine.

    `skipped`: is told of those that stand in a folder and cannot be read; hidden ones nobody misses.
    """
    found: dict[Path, None] = {}
    for path in given:
        if path.is_dir():
            found |= dict.fromkeys(_inside(path, skipped or SkippedFiles()))
        elif path.is_file():
            _check_suffix(path)
            found[path] = None
        else:
            raise UserError(f"no file or folder {path}: check the path")
    if not found:
        raise UserError(f"no {', '.join(SUFFIXES)} file in {', '.join(map(str, given))}: give files to index")
    return list(found)


def _inside(folder: Path, skipped: SkippedFiles) -> Iterator[Path]:
    """A link out of the folder is not followed: who shares a folder may not mean to share what it points at."""
    root = Path(os.path.realpath(folder))
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
            passed = skipped.outside
        elif path.is_dir():
            continue
        elif not path.is_file():
            passed = skipped.special
        elif path.suffix.lower() not in SUFFIXES:
            passed = skipped.unknown
        else:
            yield path
            continue
        if not _hidden(path, folder):
            passed.append(path)


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _check_suffix(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path} is none of {', '.join(SUFFIXES)}: convert it, or rename it if it is plain text")


def hash_files(files: Sequence[Path]) -> str:
    """Of the contents, in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        try:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "blake2b").digest())
        except OSError as error:
            raise _unreadable(file, error) from error
    return digest.hexdigest()


def read_passages(file: Path, limit: int, skipped: SkippedFiles | None = None) -> Iterator[Passage]:
    """The passages of one file, each of at most `limit` characters besides its title.

    `skipped`: is told where there is none, or where letters could not be read.
    """
    found = False
    for passage in _passages(file, limit, skipped):
        found = True
        yield passage
    if not found and skipped is not None:
        skipped.empty.append(file)


def _passages(file: Path, limit: int, skipped: SkippedFiles | None) -> Iterator[Passage]:
    if file.suffix.lower() == ".jsonl":
        yield from _rows(file, limit)
        return
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise UserError(f"{file} is larger than {MAX_FILE_BYTES >> 20} MiB: split it, or give it as JSONL")
        content = file.read_bytes()
    except OSError as error:
        raise _unreadable(file, error) from error
    title, sections = READERS[file.suffix.lower()](_decoded(content, file, skipped))
    number = 0
    for heading, text in sections:
        name = _title(title or file.stem, heading)
        for piece in split_text(clean_text(text), limit):
            yield Passage(title=name, text=piece, id=f"{file.name}#{number}")
            number += 1


def _decoded(content: bytes, file: Path, skipped: SkippedFiles | None) -> str:
    """As UTF-8; of what is in another encoding, the letters that can be read."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = content.decode("utf-8", "replace")
        if skipped is not None:
            skipped.foreign.append(file)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _title(document: str, heading: str) -> str:
    joined = document if heading in ("", document) else f"{document} > {heading}"
    return one_line(clean_text(joined))[:MAX_TITLE_CHARS]


def _rows(file: Path, limit: int) -> Iterator[Passage]:
    try:
        with file.open("rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(LONGEST_LINE + 1), b""), start=1):
                if len(line) > LONGEST_LINE:
                    raise UserError(f"{file} line {number} is longer than {LONGEST_LINE >> 20} MiB: split it")
                if line.strip():
                    yield from _row(line, number, file, limit)
    except OSError as error:
        raise _unreadable(file, error) from error


def _row(line: bytes, number: int, file: Path, limit: int) -> Iterator[Passage]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} line {number} is no JSON ({str(error)[:80]}): mend it") from error
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise UserError(f'{file} line {number} has no text: give it {{"text": "...", "title": "..."}}')
    title, name = row.get("title"), row.get("id")
    shown = one_line(clean_text(str(title)))[:MAX_TITLE_CHARS] if title is not None else file.stem
    own = one_line(clean_text(str(name)))[:MAX_TITLE_CHARS] if name is not None else f"{file.name}#{number}"
    for piece in split_text(clean_text(row["text"]), limit):
        yield Passage(title=shown, text=piece, id=own)


def _unreadable(file: Path, error: OSError) -> UserError:
    return UserError(f"cannot read {file} ({error.strerror or type(error).__name__}): make it readable")


def split_text(text: str, limit: int) -> Iterator[str]:
    """Whole paragraphs together as long as they fit in `limit` characters; a longer one is cut where a sentence ends.

    Nothing but white space at the seams is lost, and nothing stands twice.
    """
    held = ""
    for paragraph in filter(None, map(str.strip, PARAGRAPH.split(text))):
        if held and len(held) + 2 + len(paragraph) > limit:
            yield held
            held = ""
        *whole, rest = _cut(paragraph, limit)
        yield from whole
        held = f"{held}\n\n{rest}" if held else rest
    if held:
        yield held


def _cut(text: str, limit: int) -> list[str]:
    pieces, at = [], 0
    while len(text) - at > limit:
        end = _place(text, at, limit)
        if piece := text[at:end].strip():
            pieces.append(piece)
        at = end
    return [*pieces, text[at:].strip()]


def _place(text: str, at: int, limit: int) -> int:
    """Where the piece that begins at `at` ends: in its second half, so that no piece is tiny."""
    for end in ENDS:
        found = text.rfind(end, at + limit // 2, at + limit)
        if found >= 0:
            return found + len(end)
    return at + limit
