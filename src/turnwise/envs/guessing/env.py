"""`GuessingGame`: ask about a hidden word or guess it; every turn costs until the guess is right. And its solver."""

import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import ClassVar, Literal

from turnwise.core.errors import UserError
from turnwise.core.messages import Picture
from turnwise.core.task import Split
from turnwise.envs.guessing.facts import NOT_UNDERSTOOD, UNKNOWN, AnsweredQuestion, FactTable, Guess, TopicQuestion
from turnwise.envs.param_setting import param_setting
from turnwise.envs.text_env import Outcome, StrictParams, TextEnv, goes_on, won

SPLIT_FIFTHS: dict[Split, tuple[int, ...]] = {"train": (0, 1, 2), "validation": (3,), "test": (4,)}
"""Word indices modulo five that belong to each split with `words = split`."""

GUESS_SHARE = 0.2
"""Share of guesses in random play."""


class GuessingGame(TextEnv):
    """Subclasses provide the table, the first observation and the examples, and set the default of `num_words`."""

    max_turns = 20
    opening: ClassVar[str]
    """First observation."""
    examples: ClassVar[str]
    """Example of a question and of a guess. The guess is not in the table, so that it reveals no secret."""

    class Params(StrictParams):
        num_words: int
        """Number of words in play."""
        words: Literal["all", "split"] = "all"
        """Words that may be hidden: all, or split (train 3/5, validation 1/5, test 1/5 of them, without overlap)."""
        observation: Literal["all", "last"] = "all"
        """Answers in the observation: all so far, or only the last."""
        turn_reward: float = -1.0
        """Reward of every question and every wrong guess."""
        success_reward: float = 0.0
        """Reward of the right guess."""

    params: Params

    @staticmethod
    @abstractmethod
    def table() -> FactTable:
        """Return the facts about all words. Cached by the subclass."""

    def rules(self) -> str:
        params = self.params
        return "\n".join(
            (
                super().rules(),
                f"What you may ask: {join_questions(question.text for question in self.table().questions)}",
                f"I answer other questions with: {UNKNOWN}",
                self.examples,
                f"Reward {params.turn_reward:g} a turn, {params.success_reward:g} for the right guess.",
            )
        )

    def reset(self, rng: random.Random) -> str:
        self.names = self.table().shuffled[: self.params.num_words]
        needed = longest_game(self.table(), self.names)
        if self.action_budget < needed:
            raise UserError(
                f"{len(self.names)} words take up to {needed} questions and guesses, and the limits allow "
                f"{self.action_budget}: raise {param_setting('max_turns')} or lower {param_setting('num_words')}"
            )
        self.answered: list[AnsweredQuestion] = []
        self.secret = rng.choice(self.candidate_words())
        return self.opening

    def candidate_words(self) -> tuple[str, ...]:
        """Words that may be hidden in this episode's split."""
        if self.params.words == "all":
            return self.names
        if self.split is None:
            raise UserError(
                f'{param_setting("words")} = "split" needs a task with a split: set one, or use words = "all".'
            )
        fifths = SPLIT_FIFTHS[self.split]
        return tuple(name for index, name in enumerate(self.names) if index % 5 in fifths)

    def step(self, action: str) -> Outcome:
        """Any text is an action. One that is not understood costs a turn: nonsense is no cheaper than asking."""
        self.answered.append(self.table().answer(self.secret, action))
        if self.table().parse_guess(action) == self.secret:
            return won(self._observation(), self.params.success_reward)
        return goes_on(self._observation(), self.params.turn_reward)

    @property
    def invalid_reward(self) -> float:
        """The same as for any turn: otherwise twenty invalid answers would cost less than three questions."""
        return self.params.turn_reward

    def _observation(self) -> str:
        return self.state_key() if self.params.observation == "all" else str(self.answered[-1])

    def solve(self) -> list[str]:
        remaining = consistent_names(self.table(), self.names, self.answered)
        return winning_actions(self.table(), self.secret, remaining)

    def random_action(self, rng: random.Random) -> str:
        if rng.random() < GUESS_SHARE:
            return Guess(self.table().secrets[rng.choice(self.names)]).text
        return rng.choice(self.table().questions).text

    def draw(self) -> Picture | None:
        rows = tuple((answered.question, answered.answer) for answered in self.answered)
        return Picture(rows=rows) if rows else None

    def state_key(self) -> str:
        return "\n".join(map(str, self.answered)) or self.opening


def join_questions(questions: Iterable[str]) -> str:
    """Merge questions that share their first two words: "Is it alive, an animal, a plant?"."""
    endings: dict[str, list[str]] = {}
    for question in questions:
        first, second, rest = question.removesuffix("?").split(" ", 2)
        endings.setdefault(f"{first} {second}", []).append(rest)
    return " ".join(f"{start} {', '.join(ends)}?" for start, ends in endings.items())


Names = frozenset[str]


def winning_actions(table: FactTable, secret: str, remaining: Names) -> list[str]:
    """Return the solver's questions and guesses up to the right guess, if these names are possible.

    The solver asks what splits the remaining names best. It uses the secret only through the table's answers.
    """
    actions = list[str]()
    while not actions or table.parse_guess(actions[-1]) != secret:
        actions.append(next_action(table, remaining))
        before = remaining
        remaining = split_by_answer(table, remaining, actions[-1])[table.answer(secret, actions[-1]).answer]
        if remaining == before and len(remaining) > 1:
            raise ValueError(f"{actions[-1]!r} excludes no name: the solver would ask it forever")
    return actions


@lru_cache(maxsize=4096)
def next_action(table: FactTable, remaining: Names) -> str:
    """Guess when at most two names remain: another question would cost a turn and save none."""
    if len(remaining) <= 2:
        return Guess(table.secrets[min(remaining)]).text

    def expected_remaining(question: TopicQuestion) -> int:
        """Expected number of names after the answer, times the number now."""
        sizes = Counter(map(table.columns[question.topic.key].__getitem__, remaining))
        return sum(size * size for size in sizes.values())

    return min(table.questions, key=expected_remaining).text


@lru_cache(maxsize=4096)
def split_by_answer(table: FactTable, remaining: Names, action: str) -> Mapping[str, Names]:
    """answer -> names that would get it. Cached: the solver takes the same paths again and again."""
    names: dict[str, list[str]] = {}
    for name in remaining:
        names.setdefault(table.answer(name, action).answer, []).append(name)
    return {answer: frozenset(group) for answer, group in names.items()}


def consistent_names(table: FactTable, names: Iterable[str], answered: Iterable[AnsweredQuestion]) -> Names:
    """Return the names for which the table gives all of these answers."""
    informative = [answer for answer in answered if answer != NOT_UNDERSTOOD]
    return frozenset(
        name for name in names if all(table.answer(name, answer.question) == answer for answer in informative)
    )


@lru_cache(maxsize=64)
def longest_game(table: FactTable, names: tuple[str, ...]) -> int:
    """Return the most actions that the solver needs for any of these names."""
    all_names = frozenset(names)
    return max(len(winning_actions(table, name, all_names)) for name in names)
