"""The scripted player: asks what halves what is left, and guesses. It learns of the secret by answers alone."""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

from turnwise.envs.guessing.facts import FactTable, Guess, Question
from turnwise.envs.guessing.oracle import NOT_UNDERSTOOD, Exchange, Oracle

Names = frozenset[str]


def winning_actions(table: FactTable, secret: str, left: Names) -> list[str]:
    """What the player does while these names are left, up to the right guess."""
    actions = list[str]()
    while not actions or table.guessed(actions[-1]) != secret:
        actions.append(next_action(table, left))
        before, left = left, parts(table, left, actions[-1])[table.answer(secret, actions[-1]).answer]
        if left == before and len(left) > 1:
            raise ValueError(f"{actions[-1]!r} tells nothing: the player would ask it for ever")
    return actions


@lru_cache(maxsize=4096)
def next_action(table: FactTable, left: Names) -> str:
    """Of two that are left one is guessed: to ask first would cost a turn and spare none."""
    if len(left) <= 2:
        return Guess(table.secrets[min(left)]).text

    def expected_left(question: Question) -> int:
        """How many are left after the answer, on average, times how many there are now."""
        sizes = Counter(map(table.columns[question.topic.key].__getitem__, left))
        return sum(size * size for size in sizes.values())

    return min(table.questions, key=expected_left).text


@lru_cache(maxsize=4096)
def parts(table: FactTable, left: Names, action: str) -> Mapping[str, Names]:
    """Which names are left after each answer. It is kept: the player goes the same ways again and again."""
    names: dict[str, list[str]] = {}
    for name in left:
        names.setdefault(table.answer(name, action).answer, []).append(name)
    return {answer: frozenset(agreed) for answer, agreed in names.items()}


def agreeing(oracle: Oracle, names: Iterable[str], heard: Iterable[Exchange]) -> Names:
    """The names of which the oracle would have said all of this."""
    told = [exchange for exchange in heard if exchange != NOT_UNDERSTOOD]
    return frozenset(name for name in names if all(oracle.answer(name, each.question) == each for each in told))


@lru_cache(maxsize=64)
def longest_game(table: FactTable, names: tuple[str, ...]) -> int:
    """Actions that the player needs at worst if it knows that it is one of these names."""
    everything = frozenset(names)
    return max(len(winning_actions(table, name, everything)) for name in names)
