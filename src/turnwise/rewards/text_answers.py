"""Rewards for text: exact match and F1 nearly as in SQuAD (arXiv 1606.05250), patterns, length and repetition."""

import asyncio
import logging
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import regex  # type: ignore[import-untyped]
from pydantic import Field, model_validator

from turnwise.rewards.rubric import BuiltInReward, Submission, TextSource, reference_answers, select_text
from turnwise.settings.section import Positive

ARTICLES = ("a", "an", "the")
OPERATORS = "+-*/<>=^%&|~()[]{}"
"""ASCII characters that change an answer: AB+ is not AB-, a<b not a>b, and (2,3] not [2,3)."""
PUNCTUATION = str.maketrans("", "", "".join(set(string.punctuation) - set(OPERATORS)))
AROUND = string.whitespace + ".,;:!?\"'`$€£_"
"""Characters around a number or a single letter that do not change it."""
MAX_EXTRA_CHARS = 100_000
"""An answer that is longer than the reference by more is wrong: its words would take seconds to compare."""
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
EMPHASIS = re.compile(r"(?<![\w*])(\*{1,3})(?=[^\s*])([^*]+)(?<=\S)\1(?![\w*])")
"""Bold and italics of Markdown."""
HYPHEN = re.compile(r"(?<=[^\W\d_]{2})-(?=[^\W\d_])|(?<=[^\W\d_])-(?=[^\W\d_]{2})")
"""Within a word, as in x-ray; x-y is a difference."""
BRACKETED = re.compile(
    r"""(?<![^\s"'`$(])
    (?: \( ([\w\s.'$€£-]*) \)
      | [\[{] ((?=[\w\s.'-]*[^\W\d_]{2}) [\w\s.'-]*) [\]}] )
    (?![^\s"'`$.,;:!?)])""",
    re.VERBOSE,
)
"""(5), (Paris) and [Paris]: brackets around a phrase, or parentheses around a number, that are only punctuation."""


def normalise_answer(text: str) -> str:
    """Return lower case without punctuation, articles and extra spaces.

    Unlike SQuAD's normalize_answer it keeps signs, operators and brackets, since -pi is not pi, C++ not C and (2,3] not
    [2,3); points within numbers, since 3.5 is not 35; and an article that is the whole answer.
    """
    text = EMPHASIS.sub(r"\2", THOUSANDS.sub("", text.lower().replace("−", "-")))
    words = [word for part in BRACKETED.sub(r"\1\2", text).split() if (word := _word(part))]
    return " ".join([word for word in words if word not in ARTICLES] or words)


def _word(text: str) -> str:
    plain = HYPHEN.sub("", text.translate(PUNCTUATION))
    if sum(map(str.isalpha, plain)) > 1 and not any(map(str.isdigit, plain)):
        return plain
    return text.strip(AROUND) or plain


def _is_endless(answer: str, reference: str) -> bool:
    return len(answer) > len(reference) + MAX_EXTRA_CHARS


def exact_match(answer: str, reference: str) -> float:
    if _is_endless(answer, reference):
        return 0.0
    normalised = normalise_answer(reference)
    if not normalised:  # only punctuation
        return float(answer.strip() == reference.strip())
    return float(normalise_answer(answer) == normalised)


def f1(answer: str, reference: str) -> float:
    """Return the harmonic mean of precision and recall of the words."""
    if _is_endless(answer, reference):
        return 0.0
    words, expected = normalise_answer(answer).split(), normalise_answer(reference).split()
    if not words or not expected:
        return float(words == expected)
    shared = (Counter(words) & Counter(expected)).total()
    return 2 * shared / (len(words) + len(expected))


def thresholded_f1(answer: str, reference: str, at_least: float, precision: float) -> float:
    """Return F1 if it is at least `at_least` and more than `precision` of the answer's words are right, else 0."""
    if not (share := f1(answer, reference)):
        return 0.0
    words = normalise_answer(answer).split()
    shared = (Counter(words) & Counter(normalise_answer(reference).split())).total()
    enough = not precision or shared > precision * len(words)
    return share if share >= at_least and enough else 0.0


class ExactMatch(BuiltInReward):
    """1 if the answer is one of the accepted answers, else 0."""

    against: str = "answer"
    """Column with the accepted answer or a list of them."""

    async def score(self, submission: Submission) -> float:
        answer = select_text(submission, "answer")
        return max(exact_match(answer, reference) for reference in reference_answers(submission.row, self.against))


class F1(BuiltInReward):
    """F1 of the words with the closest accepted answer, 0 to 1."""

    against: str = "answer"
    """Column with the accepted answer or a list of them."""
    at_least: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Lower values count as 0, since single words are easily guessed."""
    precision: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the answer's words that must be exceeded by right ones; keeps lists of guesses from scoring."""

    async def score(self, submission: Submission) -> float:
        answer = select_text(submission, "answer")
        return max(
            thresholded_f1(answer, reference, self.at_least, self.precision)
            for reference in reference_answers(submission.row, self.against)
        )


log = logging.getLogger(__name__)


class RegexMatch(BuiltInReward):
    """1 if the pattern matches, else 0.

    Matching runs in a thread with a time limit, since an answer can make an ambiguous pattern take hours; a time-out
    counts as no match.
    """

    pattern: str
    """Regular expression in the syntax of Python's `re`."""
    match: Literal["full", "search"] | None = None
    """full: the whole text; search: anywhere in it, so that an answer with all options matches. Default: full for the
    answer, search for everything that the agent said."""
    of: TextSource = "answer"
    """Text to score: the answer, or everything that the agent said."""
    ignore_case: bool = False
    timeout_s: Annotated[float, Field(gt=0, le=60)] = 1.0
    """Time limit per text, in seconds."""

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        try:
            self._compiled()
        except regex.error as error:
            raise ValueError(f"the pattern is not a regular expression ({error}): fix it") from error
        return self

    def _compiled(self) -> Any:
        return regex.compile(self.pattern, regex.IGNORECASE if self.ignore_case else 0)

    async def score(self, submission: Submission) -> float:
        return float(await asyncio.to_thread(self._matches, select_text(submission, self.of)))

    def _matches(self, text: str) -> bool:
        compiled = self._compiled()  # cached by the library
        match = self.match or ("full" if self.of == "answer" else "search")
        find = compiled.fullmatch if match == "full" else compiled.search
        try:
            return find(text, timeout=self.timeout_s, concurrent=True) is not None
        except TimeoutError:
            log.warning("the pattern of a regex reward took more than %g s on an answer, which counts as no match; "
                        "nested repetition is the usual reason", self.timeout_s)  # fmt: skip
            return False


TextUnit = Literal["words", "characters"]


def split_units(text: str, unit: TextUnit) -> Sequence[str]:
    return text.split() if unit == "words" else text


class LengthPenalty(BuiltInReward):
    """0 up to `soft`, then linearly down to -1 at `hard` (the overlong penalty of DAPO, arXiv 2503.14476)."""

    worst = -1.0
    soft: Annotated[int, Field(ge=0)]
    """Length up to which there is no penalty."""
    hard: Positive
    """Length from which the penalty is -1."""
    unit: TextUnit = "words"
    of: TextSource = "said"
    """Text to measure: the answer, or everything that the agent said."""

    @model_validator(mode="after")
    def _soft_is_below_hard(self) -> Self:
        if self.soft >= self.hard:
            raise ValueError("soft must be less than hard")
        return self

    async def score(self, submission: Submission) -> float:
        over = len(split_units(select_text(submission, self.of), self.unit)) - self.soft
        return 0.0 - min(1.0, max(0.0, over / (self.hard - self.soft)))


class RepetitionPenalty(BuiltInReward):
    """Minus the share of n-grams that occurred before, 0 to -1."""

    worst = -1.0
    n: Annotated[int, Field(ge=1, le=32)] = 4
    """Length of the n-grams."""
    unit: TextUnit = "words"
    """words, or characters for languages without spaces; `n` should then be 10 or more."""
    of: TextSource = "said"
    """Text to score: the answer, or everything that the agent said."""

    async def score(self, submission: Submission) -> float:
        units = split_units(select_text(submission, self.of), self.unit)
        hashable = str if self.unit == "characters" else tuple
        ngrams = [hashable(units[start : start + self.n]) for start in range(len(units) - self.n + 1)]
        return 0.0 - (1 - len(set(ngrams)) / len(ngrams)) if ngrams else 0.0
