"""Any text as plain words, and phrases found among them."""

import re
import unicodedata
from collections.abc import Mapping
from typing import TypeVar

Words = tuple[str, ...]
Meaning = TypeVar("Meaning")

_LEAD = "a an answer are be city could final guess i is it its mean my of say the thing think this would"
LEAD = frozenset(_LEAD.split())
"""What may stand before a guess: "My guess is: the city of Paris"."""

_GLUE = """
am any as at been being by can commonly did do does find for found from generally had has have in item keep kept kind
known lie lies live lives located made me mostly normally object often on one ones or out people place please question
situated some something sometimes sort tell that there they to town type typically us use used using usually was we
what where which with you your
"""
GLUE = LEAD | frozenset(_GLUE.split())
"""Words that change nothing; any other word that belongs to no phrase makes a question one that is not understood."""


def words_of(text: str) -> Words:
    """Small letters and digits, no accents: "São Paulo?" gives ("sao", "paulo")."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower().replace("'", "")
    return tuple(re.findall("[a-z0-9]+", plain))


def without_lead(words: Words) -> Words:
    """What is guessed, if it is a guess; the words that only lead to it are gone."""
    start = next((place for place, word in enumerate(words) if word not in LEAD), len(words))
    return words[start:]


def find_phrases(words: Words, phrases: Mapping[Words, Meaning], longest: int) -> tuple[list[Meaning], list[str]]:
    """The meanings of the phrases in it, the longest at each place, and the words that belong to none."""
    found, others, place = list[Meaning](), list[str](), 0
    while place < len(words):
        for length in range(min(longest, len(words) - place), 0, -1):
            if (phrase := words[place : place + length]) in phrases:
                found.append(phrases[phrase])
                break
        else:
            length = 1
            others.append(words[place])
        place += length
    return found, others
