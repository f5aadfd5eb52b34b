"""What an index does not hold of the files that it was given: nobody should look in it for what was never read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

NAMED = 3
"""Files that are told by their name."""


@dataclass(slots=True)
class LeftOut:
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
