"""A table of facts about things of one kind, and the oracle that reads it: plain text rules, no model.

A topic has a fact for every secret. "Which continent is it on?" asks for the fact itself; "Is it in Europe?" asks
whether the fact is one value. A topic with the facts Yes and No is the table of a yes-or-no question.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from turnwise.core.random_streams import address
from turnwise.envs.guessing.oracle import NOT_UNDERSTOOD, Exchange
from turnwise.envs.guessing.words import GLUE, Words, find_phrases, without_lead, words_of

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
class Question:
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
        self.questions = tuple(Question(topic) for topic in topics if topic.question)
        self.columns = {topic.key: {secret.name: secret.facts[topic.key] for secret in secrets} for topic in topics}
        """topic -> name -> fact"""
        self.shuffled = tuple(sorted(self.secrets, key=address))
        """The names in an order that no list's order shows through, equal in every process."""
        self._guesses = {without_lead(words_of(name)): Guess(each) for each in secrets for name in each.names}
        asked_by = _phrases(secrets, topics)
        self._own_words = {words_of(each.text): each for each in (*self.questions, *asked_by.values()) if each.text}
        self._phrases: dict[Words, Question | Guess] = {**asked_by, **self._guesses}
        self._longest = max(map(len, self._phrases))
        self._read_again = lru_cache(maxsize=4096)(self._read)
        self._check()

    def _check(self) -> None:
        """A player would ask for ever where a question is misread, or where no question tells two secrets apart."""
        meanings: list[Question | Guess] = [*self.questions, *map(Guess, self.secrets.values())]
        for meant in meanings:
            if self.read(meant.text) != meant:
                raise ValueError(f"{meant.text!r} is not read as what it is")
        told = {tuple(question.answer(secret) for question in self.questions) for secret in self.secrets.values()}
        if len(told) < len(self.secrets):
            raise ValueError("two secrets get the same answers to all questions")

    def answer(self, secret: str, text: str) -> Exchange:
        meant = self.read(text)
        return Exchange(meant.text, meant.answer(self.secrets[secret])) if meant else NOT_UNDERSTOOD

    def guessed(self, text: str) -> str | None:
        """The name that this text guesses; None if it is no guess."""
        meant = self.read(text)
        return meant.secret.name if isinstance(meant, Guess) else None

    def read(self, text: str) -> Question | Guess | None:
        """What was meant; None if that is not clear."""
        return self._read_again(text) if len(text) <= MAX_CHARACTERS else None

    def _read(self, text: str) -> Question | Guess | None:
        """A guess is a name and nothing else. A question is about one topic, and no word in it is strange."""
        words = words_of(text)
        known = self._own_words.get(words) or self._guesses.get(without_lead(words))
        if known:
            return known
        found, others = find_phrases(words, self._phrases, self._longest)
        questions = {each for each in found if isinstance(each, Question)}
        names_a_secret = len(questions) < len(set(found))
        if names_a_secret or not GLUE.issuperset(others) or len({each.topic for each in questions}) != 1:
            return None
        narrow = [each for each in questions if each.value is not None] or list(questions)
        return narrow[0] if len(narrow) == 1 else None


def _phrases(secrets: Sequence[Secret], topics: Sequence[Topic]) -> dict[Words, Question]:
    """What each phrase asks for: a topic's fact, or whether it is one value."""
    phrases: dict[Words, Question] = {}
    for topic in topics:
        phrases |= {words_of(phrase): Question(topic) for phrase in topic.phrases}
        if topic.value_question:
            meant = {secret.facts[topic.key]: secret.facts[topic.key] for secret in secrets} | dict(topic.synonyms)
            phrases |= {without_lead(words_of(phrase)): Question(topic, value) for phrase, value in meant.items()}
    return phrases
