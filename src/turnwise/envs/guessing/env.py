"""The game of questions: ask or guess, and every turn costs until the guess is right."""

import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import ClassVar, Literal

from turnwise.core.errors import UserError
from turnwise.core.messages import Picture
from turnwise.core.task import Split
from turnwise.envs.guessing.facts import (
    NOT_UNDERSTOOD,
    UNKNOWN,
    AnsweredQuestion,
    FactTable,
    Guess,
    Oracle,
    TopicQuestion,
)
from turnwise.envs.text_env import Outcome, StrictParams, TextEnv, goes_on, won

SPLIT_FIFTHS: dict[Split, tuple[int, ...]] = {"train": (0, 1, 2), "validation": (3,), "test": (4,)}
"""Which of every five words belong to a split, where words are not shared."""

GUESS_SHARE = 0.2
"""The share of guesses in random play."""


class GuessingGame(TextEnv):
    """A subclass brings the table, the opening line and examples; `num_words` of its Params is as long as the table."""

    max_turns = 20
    opening: ClassVar[str]
    """The first observation."""
    examples: ClassVar[str]
    """Of a question and of a guess. The guess names nothing in the table, so that it never gives a secret away."""

    class Params(StrictParams):
        num_words: int
        """How many words are in play."""
        words: Literal["all", "split"] = "all"
        """Split: 3/5 of the words are hidden in training, 1/5 in validation, 1/5 in the test, none in two of them."""
        observation: Literal["all", "last"] = "all"
        """All answers so far, or the last one alone."""
        turn_reward: float = -1.0
        """Of every question and every wrong guess."""
        success_reward: float = 0.0
        """Of the right guess."""

    params: Params

    @classmethod
    @abstractmethod
    def table(cls) -> FactTable:
        """What is known of all words; made once."""

    def oracle(self) -> Oracle:
        """Who answers."""
        return self.table()

    def rules(self) -> str:
        pay = self.params
        return "\n".join(
            (
                super().rules(),
                f"What you may ask: {join_questions(question.text for question in self.table().questions)}",
                f"I answer other questions with: {UNKNOWN}",
                self.examples,
                f"Reward {pay.turn_reward:g} a turn, {pay.success_reward:g} for the right guess.",
            )
        )

    def reset(self, rng: random.Random) -> str:
        self.names = self.table().shuffled[: self.params.num_words]
        needed = longest_game(self.table(), self.names)
        if self.action_budget < needed:
            raise UserError(
                f"{len(self.names)} words take up to {needed} questions and guesses, and the limits allow "
                f"{self.action_budget}: raise env.params.max_turns or lower env.params.num_words"
            )
        self.heard: list[AnsweredQuestion] = []
        self.secret = rng.choice(self.hidden_words())
        return self.opening

    def hidden_words(self) -> tuple[str, ...]:
        """The words that may be hidden here."""
        if self.params.words == "all":
            return self.names
        if self.split is None:
            raise UserError("env.params.words = split, and the split is not known: set split, or take words = all")
        places = SPLIT_FIFTHS[self.split]
        return tuple(name for place, name in enumerate(self.names) if place % 5 in places)

    def step(self, action: str) -> Outcome:
        """Any text is an action: what is not understood costs its turn, so that no nonsense is cheaper than asking."""
        self.heard.append(self.oracle().answer(self.secret, action))
        if self.table().guessed(action) == self.secret:
            return won(self._observation(), self.params.success_reward)
        return goes_on(self._observation(), self.params.turn_reward)

    @property
    def invalid_reward(self) -> float:
        """As any turn: else twenty unreadable answers would be cheaper than three questions."""
        return self.params.turn_reward

    def _observation(self) -> str:
        return self.state_key() if self.params.observation == "all" else str(self.heard[-1])

    def solve(self) -> list[str]:
        left = consistent_names(self.oracle(), self.names, self.heard)
        return winning_actions(self.table(), self.secret, left)

    def random_action(self, rng: random.Random) -> str:
        if rng.random() < GUESS_SHARE:
            return Guess(self.table().secrets[rng.choice(self.names)]).text
        return rng.choice(self.table().questions).text

    def draw(self) -> Picture | None:
        rows = tuple((exchange.question, exchange.answer) for exchange in self.heard)
        return Picture(rows=rows) if rows else None

    def state_key(self) -> str:
        return "\n".join(map(str, self.heard)) or self.opening


def join_questions(questions: Iterable[str]) -> str:
    """Questions that begin with the same two words become one: "Is it alive, an animal, a plant?"."""
    endings: dict[str, list[str]] = {}
    for question in questions:
        first, second, rest = question.removesuffix("?").split(" ", 2)
        endings.setdefault(f"{first} {second}", []).append(rest)
    return " ".join(f"{start} {', '.join(ends)}?" for start, ends in endings.items())


Names = frozenset[str]


def winning_actions(table: FactTable, secret: str, left: Names) -> list[str]:
    """What the player does while these names are left, up to the right guess."""
    actions = list[str]()
    while not actions or table.guessed(actions[-1]) != secret:
        actions.append(next_action(table, left))
        before, left = left, split_by_answer(table, left, actions[-1])[table.answer(secret, actions[-1]).answer]
        if left == before and len(left) > 1:
            raise ValueError(f"{actions[-1]!r} tells nothing: the player would ask it for ever")
    return actions


@lru_cache(maxsize=4096)
def next_action(table: FactTable, left: Names) -> str:
    """Of two that are left one is guessed: to ask first would cost a turn and spare none."""
    if len(left) <= 2:
        return Guess(table.secrets[min(left)]).text

    def expected_left(question: TopicQuestion) -> int:
        """How many are left after the answer, on average, times how many there are now."""
        sizes = Counter(map(table.columns[question.topic.key].__getitem__, left))
        return sum(size * size for size in sizes.values())

    return min(table.questions, key=expected_left).text


@lru_cache(maxsize=4096)
def split_by_answer(table: FactTable, left: Names, action: str) -> Mapping[str, Names]:
    """Which names are left after each answer. It is kept: the player goes the same ways again and again."""
    names: dict[str, list[str]] = {}
    for name in left:
        names.setdefault(table.answer(name, action).answer, []).append(name)
    return {answer: frozenset(agreed) for answer, agreed in names.items()}


def consistent_names(oracle: Oracle, names: Iterable[str], heard: Iterable[AnsweredQuestion]) -> Names:
    """The names of which the oracle would have said all of this."""
    told = [exchange for exchange in heard if exchange != NOT_UNDERSTOOD]
    return frozenset(name for name in names if all(oracle.answer(name, each.question) == each for each in told))


@lru_cache(maxsize=64)
def longest_game(table: FactTable, names: tuple[str, ...]) -> int:
    """Actions that the player needs at worst if it knows that it is one of these names."""
    everything = frozenset(names)
    return max(len(winning_actions(table, name, everything)) for name in names)
