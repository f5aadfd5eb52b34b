"""Answers in words: the same, or how much of them is the same, nearly as SQuAD (arXiv 1606.05250) compares them."""

import asyncio
import logging
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import regex  # type: ignore[import-untyped]
from pydantic import Field, model_validator

from turnwise.config.section import Positive
from turnwise.rewards.rubric import BuiltInReward, Submission, TextSource, reference_answers, select_text

ARTICLES = ("a", "an", "the")
PUNCTUATION = str.maketrans("", "", string.punctuation)
AROUND = string.whitespace + ".,;:!?\"'`()[]{}$€£*_"
"""What may stand around a number and says nothing of it."""
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")


def normalise_answer(text: str) -> str:
    """Lower case, without punctuation, articles and spaces to spare.

    Unlike SQuAD's it leaves numbers and single letters whole, since -5 is not 5, 3.5 not 35 and C++ not C, and an
    article that is all there is.
    """
    words = [word for each in THOUSANDS.sub("", text.lower()).split() if (word := _word(each))]
    return " ".join([word for word in words if word not in ARTICLES] or words)


def _word(text: str) -> str:
    plain = text.translate(PUNCTUATION)
    if len(plain) > 1 and not any(map(str.isdigit, plain)):
        return plain
    return text.strip(AROUND) or plain


def exact_match(answer: str, reference: str) -> float:
    return float(normalise_answer(answer) == normalise_answer(reference))


def f1(answer: str, reference: str) -> float:
    """The harmonic mean of precision and recall of the words."""
    got, wanted = normalise_answer(answer).split(), normalise_answer(reference).split()
    if not got or not wanted:
        return float(got == wanted)
    shared = (Counter(got) & Counter(wanted)).total()
    return 2 * shared / (len(got) + len(wanted))


def thresholded_f1(answer: str, reference: str, at_least: float, precision: float) -> float:
    """F1 where it is large enough and enough of the answer is right, else 0."""
    share, got = f1(answer, reference), normalise_answer(answer).split()
    shared = (Counter(got) & Counter(normalise_answer(reference).split())).total()
    enough = not precision or shared > precision * len(got)
    return share if share >= at_least and enough else 0.0


class ExactMatch(BuiltInReward):
    """1 where the answer is one of the accepted ones, else 0."""

    against: str = "answer"
    """The column with the accepted answer, or a list of them."""

    async def score(self, answered: Submission) -> float:
        answer = select_text(answered, "answer")
        return max(exact_match(answer, each) for each in reference_answers(answered.row, self.against))


class F1(BuiltInReward):
    """The share of words that the answer has in common with the nearest accepted one, 0 to 1."""

    against: str = "answer"
    """The column with the accepted answer, or a list of them."""
    at_least: Annotated[float, Field(ge=0, le=1)] = 0.0
    """A smaller share counts as none: single words are soon guessed."""
    precision: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """More than this share of the answer's own words must be right: a list of guesses is worth nothing."""

    async def score(self, answered: Submission) -> float:
        answer = select_text(answered, "answer")
        return max(
            thresholded_f1(answer, each, self.at_least, self.precision)
            for each in reference_answers(answered.row, self.against)
        )


log = logging.getLogger(__name__)


class RegexMatch(BuiltInReward):
    """1 where the pattern matches, else 0.

    The text is the agent's, which may be one on which a pattern of many ways takes hours: it gets `timeout_s` in a
    thread beside the others, and then it counts as no match.
    """

    pattern: str
    """As Python's `re` takes it."""
    match: Literal["full", "search"] = "search"
    """The whole text, or anywhere in it."""
    of: TextSource = "answer"
    """What is looked at: the answer, or all that the agent said."""
    ignore_case: bool = False
    timeout_s: Annotated[float, Field(gt=0, le=60)] = 1.0
    """Of one text."""

    @model_validator(mode="after")
    def _readable(self) -> Self:
        try:
            self._compiled()
        except regex.error as error:
            raise ValueError(f"the pattern is no regular expression ({error}): mend it") from error
        return self

    def _compiled(self) -> Any:
        return regex.compile(self.pattern, regex.IGNORECASE if self.ignore_case else 0)

    async def score(self, answered: Submission) -> float:
        return float(await asyncio.to_thread(self._matches, select_text(answered, self.of)))

    def _matches(self, text: str) -> bool:
        compiled = self._compiled()  # the library keeps what it compiled
        find = compiled.fullmatch if self.match == "full" else compiled.search
        try:
            return find(text, timeout=self.timeout_s, concurrent=True) is not None
        except TimeoutError:
            log.warning("the pattern of a reward takes more than %g s on an answer, which counts as no match: "
                        "nested repetition is the usual reason", self.timeout_s)  # fmt: skip
            return False


TextUnit = Literal["words", "characters"]


def split_units(text: str, unit: TextUnit) -> Sequence[str]:
    return text.split() if unit == "words" else text


class LengthPenalty(BuiltInReward):
    """0 up to `soft`, then evenly down to -1 at `hard` (the overlong cost of DAPO, arXiv 2503.14476)."""

    worst = -1.0
    soft: Annotated[int, Field(ge=0)]
    """Up to here length costs nothing."""
    hard: Positive
    """From here on it costs 1."""
    unit: TextUnit = "words"
    of: TextSource = "said"
    """What is measured: the answer, or all that the agent said."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.soft >= self.hard:
            raise ValueError("soft must be less than hard")
        return self

    async def score(self, answered: Submission) -> float:
        over = len(split_units(select_text(answered, self.of), self.unit)) - self.soft
        return 0.0 - min(1.0, max(0.0, over / (self.hard - self.soft)))


class RepetitionPenalty(BuiltInReward):
    """Minus the share of runs of `n` words that were said before, 0 to -1."""

    worst = -1.0
    n: Annotated[int, Field(ge=1, le=32)] = 4
    """How many in a row make a run."""
    unit: TextUnit = "words"
    """Characters for languages without spaces; `n` then wants to be 10 or more."""
    of: TextSource = "said"
    """What is looked at: the answer, or all that the agent said."""

    async def score(self, answered: Submission) -> float:
        said = split_units(select_text(answered, self.of), self.unit)
        hashable = str if self.unit == "characters" else tuple
        runs = [hashable(said[start : start + self.n]) for start in range(len(said) - self.n + 1)]
        return 0.0 - (1 - len(set(runs)) / len(runs)) if runs else 0.0
