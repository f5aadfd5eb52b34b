"""A table of facts that answers questions about a secret word, by text rules and without a model.

Every secret has a fact for each topic. "Which continent is it on?" asks for the fact; "Is it in Europe?" asks whether
the fact is one value. Yes-or-no questions are topics whose facts are Yes and No.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from turnwise.core.random_streams import address
from turnwise.files.package_data import load_toml

UNKNOWN = "I do not know."
MAX_CHARS = 200
"""Longest text that is read as a question or guess."""

Words = tuple[str, ...]
Meaning = TypeVar("Meaning")

_LEAD = "a an answer are be city could final guess i is it its mean my of say the thing think this would"
LEAD_WORDS = frozenset(_LEAD.split())
"""Words that may precede the name in a guess: "My guess is: the city of Paris"."""

_FILLER = """
am any as at been being by can commonly did do does find for found from generally had has have in item keep kept kind
known lie lies live lives located made me mostly normally object often on one ones or out people place please question
situated some something sometimes sort tell that there they to town type typically us use used using usually was we
what where which with you your
"""
FILLER_WORDS = LEAD_WORDS | frozenset(_FILLER.split())
"""Words without meaning here. A question with any other word outside of a known phrase is not understood."""


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """A question as it was understood, with its answer."""

    question: str
    answer: str

    def __str__(self) -> str:
        return f"{self.question} {self.answer}"


NOT_UNDERSTOOD = AnsweredQuestion("?", UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Secret:
    name: str
    facts: Mapping[str, str]
    """topic key -> fact"""
    article: str = ""
    """Article before the name in a guess, with its space: "Is it " + "a " + "cat?"."""
    aliases: tuple[str, ...] = ()
    """Other names that a guess may use."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Topic:
    key: str
    phrases: tuple[str, ...]
    """Phrases that mark a question as being about this topic."""
    question: str = ""
    """Question that asks for the fact; empty: only single values can be asked for."""
    answer: str = "{}."
    """Template of the answer that states the fact."""
    value_question: str = ""
    """Template of a question about one value; empty: there is no such question."""
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """phrase -> value that it means, in addition to the values themselves"""


def load_topics(package: str, name: str) -> tuple[Topic, ...]:
    """Read the topics of a game from a TOML file, with a table per topic."""
    topics = load_toml(package, name)
    return tuple(Topic(key=key, **fields | {"phrases": tuple(fields["phrases"])}) for key, fields in topics.items())


@dataclass(frozen=True, slots=True)
class TopicQuestion:
    topic: Topic
    value: str | None = None
    """Value that is asked about; None asks for the fact itself."""

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
    """Answers questions about any of its secrets."""

    def __init__(self, secrets: Sequence[Secret], topics: Sequence[Topic]) -> None:
        self.topics = tuple(topics)
        self.secrets = {secret.name: secret for secret in secrets}
        self.questions = tuple(TopicQuestion(topic) for topic in topics if topic.question)
        self.columns = {topic.key: {secret.name: secret.facts[topic.key] for secret in secrets} for topic in topics}
        """topic key -> name -> fact"""
        self.shuffled = tuple(sorted(self.secrets, key=address))
        """Names in a pseudo-random order that is the same in every process."""
        self._guesses = {
            strip_lead_words(split_words(name)): Guess(secret) for secret in secrets for name in secret.names
        }
        question_phrases = _question_phrases(secrets, topics)
        self._full_texts = {
            split_words(question.text): question
            for question in (*self.questions, *question_phrases.values())
            if question.text
        }
        self._phrases: dict[Words, TopicQuestion | Guess] = {**question_phrases, **self._guesses}
        self._longest_phrase = max(map(len, self._phrases))
        self._parse_cached = lru_cache(maxsize=4096)(self._parse)  # the same questions come again and again
        self._check()

    def _check(self) -> None:
        """Reject a table in which a question is misread or two secrets have equal answers: the solver would loop."""
        meanings: list[TopicQuestion | Guess] = [*self.questions, *map(Guess, self.secrets.values())]
        for meaning in meanings:
            if self.parse(meaning.text) != meaning:
                raise ValueError(f"{meaning.text!r} is not parsed as itself")
        answers = {tuple(question.answer(secret) for question in self.questions) for secret in self.secrets.values()}
        if len(answers) < len(self.secrets):
            raise ValueError("two secrets have the same answers to all questions")

    def answer(self, secret: str, text: str) -> AnsweredQuestion:
        """Answer any text about this secret."""
        meaning = self.parse(text)
        return AnsweredQuestion(meaning.text, meaning.answer(self.secrets[secret])) if meaning else NOT_UNDERSTOOD

    def parse_guess(self, text: str) -> str | None:
        """Return the name that this text guesses; None if it is not a guess."""
        meaning = self.parse(text)
        return meaning.secret.name if isinstance(meaning, Guess) else None

    def parse(self, text: str) -> TopicQuestion | Guess | None:
        """Return the meaning of a text; None if it is unclear."""
        return self._parse_cached(text) if len(text) <= MAX_CHARS else None

    def _parse(self, text: str) -> TopicQuestion | Guess | None:
        """A guess is a name and nothing else. A question is about one topic and has no unknown word."""
        words = split_words(text)
        known = self._full_texts.get(words) or self._guesses.get(strip_lead_words(words))
        if known:
            return known
        meanings, others = find_phrases(words, self._phrases, self._longest_phrase)
        questions = {meaning for meaning in meanings if isinstance(meaning, TopicQuestion)}
        names_a_secret = len(questions) < len(set(meanings))
        if (
            names_a_secret
            or not FILLER_WORDS.issuperset(others)
            or len({question.topic for question in questions}) != 1
        ):
            return None
        specific = [question for question in questions if question.value is not None] or list(questions)
        return specific[0] if len(specific) == 1 else None


def _question_phrases(secrets: Sequence[Secret], topics: Sequence[Topic]) -> dict[Words, TopicQuestion]:
    """phrase -> the question that it asks"""
    phrases: dict[Words, TopicQuestion] = {}
    for topic in topics:
        phrases |= {split_words(phrase): TopicQuestion(topic) for phrase in topic.phrases}
        if topic.value_question:
            values = {secret.facts[topic.key]: secret.facts[topic.key] for secret in secrets} | dict(topic.synonyms)
            phrases |= {
                strip_lead_words(split_words(phrase)): TopicQuestion(topic, value) for phrase, value in values.items()
            }
    return phrases


def split_words(text: str) -> Words:
    """Lower-case ASCII words without accents: "São Paulo?" gives ("sao", "paulo")."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower().replace("'", "")
    return tuple(re.findall("[a-z0-9]+", plain))


def strip_lead_words(words: Words) -> Words:
    start = next((index for index, word in enumerate(words) if word not in LEAD_WORDS), len(words))
    return words[start:]


def find_phrases(words: Words, phrases: Mapping[Words, Meaning], longest: int) -> tuple[list[Meaning], list[str]]:
    """Return (meanings of the phrases, longest match first at each position; words outside of any phrase)."""
    meanings, others, index = list[Meaning](), list[str](), 0
    while index < len(words):
        for length in range(min(longest, len(words) - index), 0, -1):
            if (phrase := words[index : index + length]) in phrases:
                meanings.append(phrases[phrase])
                break
        else:
            length = 1
            others.append(words[index])
        index += length
    return meanings, others
