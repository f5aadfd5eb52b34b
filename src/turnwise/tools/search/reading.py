"""Passages from files: txt, md, html and jsonl; a folder stands for all such files in it."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.tools.search.html_text import read_html
from turnwise.tools.search.left_out import LeftOut
from turnwise.tools.search.passages import LONGEST_TITLE, Passage, clean, one_line, split_text

MOST_BYTES = 256 << 20
"""Of a file that is read whole."""
LONGEST_LINE = 16 << 20
"""Of a JSONL file, whose number of lines has no limit."""
HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t#]*$")

Sections = tuple[str, list[tuple[str, str]]]
"""A document: its title, and (heading, text) of each part."""


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


def find_files(given: Sequence[Path], left_out: LeftOut | None = None) -> list[Path]:
    """The files to read, those of folders in an order that does not depend on the machine.

    `left_out`: is told of those that stand in a folder and cannot be read; hidden ones nobody misses.
    """
    found: dict[Path, None] = {}
    for path in given:
        if path.is_dir():
            found |= dict.fromkeys(_inside(path, left_out or LeftOut()))
        elif path.is_file():
            _check_suffix(path)
            found[path] = None
        else:
            raise UserError(f"no file or folder {path}: check the path")
    if not found:
        raise UserError(f"no {', '.join(SUFFIXES)} file in {', '.join(map(str, given))}: give files to index")
    return list(found)


def _inside(folder: Path, left_out: LeftOut) -> Iterator[Path]:
    """A link out of the folder is not followed: who shares a folder may not mean to share what it points at."""
    root = Path(os.path.realpath(folder))
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
            passed = left_out.outside
        elif path.is_dir():
            continue
        elif not path.is_file():
            passed = left_out.special
        elif path.suffix.lower() not in SUFFIXES:
            passed = left_out.unknown
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


def digest_of(files: Sequence[Path]) -> str:
    """Of the contents, in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        try:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "blake2b").digest())
        except OSError as error:
            raise _unreadable(file, error) from error
    return digest.hexdigest()


def read_passages(file: Path, limit: int, left_out: LeftOut | None = None) -> Iterator[Passage]:
    """The passages of one file, each of at most `limit` characters besides its title.

    `left_out`: is told where there is none, or where letters could not be read.
    """
    found = False
    for passage in _passages(file, limit, left_out):
        found = True
        yield passage
    if not found and left_out is not None:
        left_out.empty.append(file)


def _passages(file: Path, limit: int, left_out: LeftOut | None) -> Iterator[Passage]:
    if file.suffix.lower() == ".jsonl":
        yield from _rows(file, limit)
        return
    try:
        if file.stat().st_size > MOST_BYTES:
            raise UserError(f"{file} is larger than {MOST_BYTES >> 20} MiB: split it, or give it as JSONL")
        content = file.read_bytes()
    except OSError as error:
        raise _unreadable(file, error) from error
    title, sections = READERS[file.suffix.lower()](_decoded(content, file, left_out))
    number = 0
    for heading, text in sections:
        name = _title(title or file.stem, heading)
        for piece in split_text(clean(text), limit):
            yield Passage(title=name, text=piece, id=f"{file.name}#{number}")
            number += 1


def _decoded(content: bytes, file: Path, left_out: LeftOut | None) -> str:
    """As UTF-8; of what is in another encoding, the letters that can be read."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = content.decode("utf-8", "replace")
        if left_out is not None:
            left_out.foreign.append(file)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _title(document: str, heading: str) -> str:
    joined = document if heading in ("", document) else f"{document} > {heading}"
    return one_line(clean(joined))[:LONGEST_TITLE]


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
    shown = one_line(clean(str(title)))[:LONGEST_TITLE] if title is not None else file.stem
    own = one_line(clean(str(name)))[:LONGEST_TITLE] if name is not None else f"{file.name}#{number}"
    for piece in split_text(clean(row["text"]), limit):
        yield Passage(title=shown, text=piece, id=own)


def _unreadable(file: Path, error: OSError) -> UserError:
    return UserError(f"cannot read {file} ({error.strerror or type(error).__name__}): make it readable")
