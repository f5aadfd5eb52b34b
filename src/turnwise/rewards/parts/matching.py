"""Answers in words: the same, or how much of them is the same. Both as SQuAD (arXiv 1606.05250) compares them."""

import re
import string
from collections import Counter
from typing import Annotated

from pydantic import Field

from turnwise.config.section import Section
from turnwise.rewards.parts.texts import looked_at, references
from turnwise.rewards.rubric import Answered

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Lower case, without punctuation, articles and spaces to spare."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact_match(answer: str, reference: str) -> float:
    return float(normalised(answer) == normalised(reference))


def f1(answer: str, reference: str) -> float:
    """The harmonic mean of precision and recall of the words."""
    got, wanted = normalised(answer).split(), normalised(reference).split()
    if not got or not wanted:
        return float(got == wanted)
    shared = (Counter(got) & Counter(wanted)).total()
    return 2 * shared / (len(got) + len(wanted))


class ExactMatch(Section):
    """1 where the answer is one of the accepted ones, else 0."""

    against: str = "answer"
    """The column with the accepted answer, or a list of them."""

    async def __call__(self, answered: Answered) -> float:
        answer = looked_at(answered, "answer")
        return max(exact_match(answer, each) for each in references(answered.row, self.against))


class F1(Section):
    """The share of words that the answer has in common with the nearest accepted one, 0 to 1."""

    against: str = "answer"
    """The column with the accepted answer, or a list of them."""
    at_least: Annotated[float, Field(ge=0, le=1)] = 0.0
    """A smaller share counts as none: single words are soon guessed."""

    async def __call__(self, answered: Answered) -> float:
        answer = looked_at(answered, "answer")
        share = max(f1(answer, each) for each in references(answered.row, self.against))
        return share if share >= self.at_least else 0.0
