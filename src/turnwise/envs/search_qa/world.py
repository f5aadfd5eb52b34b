"""A world of facts: what there is, how it hangs together, and a passage about each thing."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from turnwise.tools.search.types import Passage


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """From a thing to another one, or to a plain value: to one alone, so that a question has one answer."""

    name: str
    of: str
    """Of what kind of thing."""
    to: str = ""
    """To what kind of thing; empty: to a value, of which nothing more can be asked."""
    sentence: str
    """How a passage tells it, with {name} and {value}."""
    phrase: str
    """How a question names it, as `the author of {}`."""
    question: str = "What is {}?"

    def told(self, name: str, value: str) -> str:
        return self.sentence.format(name=name, value=value)

    def read(self, name: str, text: str) -> str | None:
        """The value, out of a text that tells it of this thing."""
        pattern = re.escape(self.sentence.format(name=name, value="\0")).replace(re.escape("\0"), "([^.]+?)")
        found = re.search(pattern, text)
        return found[1] if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    kinds: Mapping[str, str]
    """Of each thing, by its name."""
    facts: Mapping[tuple[str, str], str]
    """(thing, relation) -> value."""
    relations: tuple[Relation, ...]
    passages: tuple[Passage, ...]

    @property
    def names(self) -> list[str]:
        return list(self.kinds)

    def values(self, relation: str) -> list[str]:
        """All that this relation leads to, each once."""
        return sorted({value for (_, name), value in self.facts.items() if name == relation})
