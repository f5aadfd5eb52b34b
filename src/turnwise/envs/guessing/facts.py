"""Any text as plain words, and phrases found among them."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol, TypeVar

from turnwise.core.random_streams import address

Words = tuple[str, ...]
Meaning = TypeVar("Meaning")

_LEAD = "a an answer are be city could final guess i is it its mean my of say the thing think this would"
LEAD_WORDS = frozenset(_LEAD.split())
"""What may stand before a guess: "My guess is: the city of Paris"."""

_GLUE = """
am any as at been being by can commonly did do does find for found from generally had has have in item keep kept kind
known lie lies live lives located made me mostly normally object often on one ones or out people place please question
situated some something sometimes sort tell that there they to town type typically us use used using usually was we
what where which with you your
"""
FILLER_WORDS = LEAD_WORDS | frozenset(_GLUE.split())
"""Words that change nothing; any other word that belongs to no phrase makes a question one that is not understood."""


def split_words(text: str) -> Words:
    """Small letters and digits, no accents: "São Paulo?" gives ("sao", "paulo")."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower().replace("'", "")
    return tuple(re.findall("[a-z0-9]+", plain))


def strip_lead_words(words: Words) -> Words:
    """What is guessed, if it is a guess; the words that only lead to it are gone."""
    start = next((place for place, word in enumerate(words) if word not in LEAD_WORDS), len(words))
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


UNKNOWN = "I do not know."


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """A question as it was understood, and its answer: a line of what the player knows."""

    question: str
    answer: str

    def __str__(self) -> str:
        return f"{self.question} {self.answer}"


NOT_UNDERSTOOD = AnsweredQuestion("?", UNKNOWN)


class Oracle(Protocol):
    def answer(self, secret: str, text: str) -> AnsweredQuestion:
        """What it says of this secret. `text` is a model's and may be anything."""
        ...


MAX_CHARACTERS = 200
"""A longer text is no question; it is not looked at, whatever a model writes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Secret:
    name: str
    facts: Mapping[str, str]
    """topic -> fact"""
    article: str = ""
    """What stands before the name in a guess, with its space: "Is it " + "a " + "cat?"."""
    aliases: tuple[str, ...] = ()
    """Other names that a guess may use."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Topic:
    key: str
    phrases: tuple[str, ...]
    """A question that names one of them is about this topic."""
    question: str = ""
    """Asks for the fact; empty where only single values may be asked for."""
    answer: str = "{}."
    """Tells the fact."""
    value_question: str = ""
    """Asks for one value; empty where there is no such question."""
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """phrase -> the value that it means, besides the values' own words"""


@dataclass(frozen=True, slots=True)
class TopicQuestion:
    topic: Topic
    value: str | None = None
    """None: the fact itself is asked for."""

    @property
    def text(self) -> str:
        return self.topic.question if self.value is None else self.topic.value_question.format(self.value)

    def answer(self, secret: Secret) -> str:
        fact = secret.facts[self.topic.key]
        if self.value is None:
            return self.topic.answer.format(fact)
        return "Yes." if fact == self.value else "No."


@dataclass(frozen=True, slots=True)
class Guess:
    secret: Secret

    @property
    def text(self) -> str:
        return f"Is it {self.secret.article}{self.secret.name}?"

    def answer(self, secret: Secret) -> str:
        return "Correct." if secret is self.secret else "No."


class FactTable:
    """An `Oracle`. What it understood of a text is kept for a while, since the same questions come again and again."""

    def __init__(self, secrets: Sequence[Secret], topics: Sequence[Topic]) -> None:
        self.secrets = {secret.name: secret for secret in secrets}
        self.questions = tuple(TopicQuestion(topic) for topic in topics if topic.question)
        self.columns = {topic.key: {secret.name: secret.facts[topic.key] for secret in secrets} for topic in topics}
        """topic -> name -> fact"""
        self.shuffled = tuple(sorted(self.secrets, key=address))
        """The names in an order that no list's order shows through, equal in every process."""
        self._guesses = {strip_lead_words(split_words(name)): Guess(each) for each in secrets for name in each.names}
        asked_by = _phrases(secrets, topics)
        self._own_words = {split_words(each.text): each for each in (*self.questions, *asked_by.values()) if each.text}
        self._phrases: dict[Words, TopicQuestion | Guess] = {**asked_by, **self._guesses}
        self._longest = max(map(len, self._phrases))
        self._read_again = lru_cache(maxsize=4096)(self._read)
        self._check()

    def _check(self) -> None:
        """A player would ask for ever where a question is misread, or where no question tells two secrets apart."""
        meanings: list[TopicQuestion | Guess] = [*self.questions, *map(Guess, self.secrets.values())]
        for meant in meanings:
            if self.read(meant.text) != meant:
                raise ValueError(f"{meant.text!r} is not read as what it is")
        told = {tuple(question.answer(secret) for question in self.questions) for secret in self.secrets.values()}
        if len(told) < len(self.secrets):
            raise ValueError("two secrets get the same answers to all questions")

    def answer(self, secret: str, text: str) -> AnsweredQuestion:
        meant = self.read(text)
        return AnsweredQuestion(meant.text, meant.answer(self.secrets[secret])) if meant else NOT_UNDERSTOOD

    def guessed(self, text: str) -> str | None:
        """The name that this text guesses; None if it is no guess."""
        meant = self.read(text)
        return meant.secret.name if isinstance(meant, Guess) else None

    def read(self, text: str) -> TopicQuestion | Guess | None:
        """What was meant; None if that is not clear."""
        return self._read_again(text) if len(text) <= MAX_CHARACTERS else None

    def _read(self, text: str) -> TopicQuestion | Guess | None:
        """A guess is a name and nothing else. A question is about one topic, and no word in it is strange."""
        words = split_words(text)
        known = self._own_words.get(words) or self._guesses.get(strip_lead_words(words))
        if known:
            return known
        found, others = find_phrases(words, self._phrases, self._longest)
        questions = {each for each in found if isinstance(each, TopicQuestion)}
        names_a_secret = len(questions) < len(set(found))
        if names_a_secret or not FILLER_WORDS.issuperset(others) or len({each.topic for each in questions}) != 1:
            return None
        narrow = [each for each in questions if each.value is not None] or list(questions)
        return narrow[0] if len(narrow) == 1 else None


def _phrases(secrets: Sequence[Secret], topics: Sequence[Topic]) -> dict[Words, TopicQuestion]:
    """What each phrase asks for: a topic's fact, or whether it is one value."""
    phrases: dict[Words, TopicQuestion] = {}
    for topic in topics:
        phrases |= {split_words(phrase): TopicQuestion(topic) for phrase in topic.phrases}
        if topic.value_question:
            meant = {secret.facts[topic.key]: secret.facts[topic.key] for secret in secrets} | dict(topic.synonyms)
            phrases |= {
                strip_lead_words(split_words(phrase)): TopicQuestion(topic, value) for phrase, value in meant.items()
            }
    return phrases
