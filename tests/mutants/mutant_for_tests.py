"""A mutation of one source file, and how it is applied."""

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "turnwise"
TESTS = ROOT / "tests"


class DoesNotApplyError(Exception):
    """The mutation does not fit the source as it is now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A small change of a source file that a maintainer could make by accident."""

    file: str
    """Path relative to src/turnwise."""
    within: str
    """Name of the function or class that holds `before`; empty: the whole file."""
    what: str
    """Short description of the bug."""
    before: str
    """Source text, exactly once in the file or in `within`."""
    after: str
    tests: tuple[str, ...]
    """Files relative to tests/; at least one of their tests must fail."""

    @property
    def name(self) -> str:
        return f"{self.file}: {self.what}"

    def apply(self, source: str) -> str:
        """Return the mutated source of the file."""
        start, end = _extent(source, self.within) if self.within else (0, len(source))
        found = source.count(self.before, start, end)
        if found != 1:
            where = f"{self.within} in {self.file}" if self.within else self.file
            raise DoesNotApplyError(f"its text occurs {found} times in {where}, not once:\n    {self.before}")
        position = source.index(self.before, start, end)
        mutated = source[:position] + self.after + source[position + len(self.before) :]
        if self.before.split() == self.after.split():
            raise DoesNotApplyError("it changes nothing")
        try:
            ast.parse(mutated)
        except SyntaxError as error:
            raise DoesNotApplyError(f"the result is not Python: {error}") from error
        return mutated


def mutants(file: str, tests: Sequence[str], *changes: tuple[str, str, str], within: str = "") -> Iterable[Mutant]:
    """Mutants of one file. Each change is (what goes wrong, text before, text after)."""
    for what, before, after in changes:
        yield Mutant(file=file, within=within, what=what, before=before, after=after, tests=tuple(tests))


def _extent(source: str, name: str) -> tuple[int, int]:
    """Return the start and end of the only function or class with this name."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds) and node.name == name]
    if len(found) != 1:
        raise DoesNotApplyError(f"{len(found)} functions and classes are called {name}, not one")
    lines = source.splitlines(keepends=True)
    return sum(map(len, lines[: found[0].lineno - 1])), sum(map(len, lines[: found[0].end_lineno]))
