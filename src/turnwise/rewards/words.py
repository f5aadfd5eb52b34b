"""Answers in words: the same, or how much of them is the same, nearly as SQuAD (arXiv 1606.05250) compares them."""

import re
import string
from collections import Counter

ARTICLES = ("a", "an", "the")
PUNCTUATION = str.maketrans("", "", string.punctuation)
AROUND = string.whitespace + ".,;:!?\"'`()[]{}$€£*_"
"""What may stand around a number and says nothing of it."""
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")


def normalised(text: str) -> str:
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
    return float(normalised(answer) == normalised(reference))


def f1(answer: str, reference: str) -> float:
    """The harmonic mean of precision and recall of the words."""
    got, wanted = normalised(answer).split(), normalised(reference).split()
    if not got or not wanted:
        return float(got == wanted)
    shared = (Counter(got) & Counter(wanted)).total()
    return 2 * shared / (len(got) + len(wanted))


def graded_f1(answer: str, reference: str, at_least: float, precision: float) -> float:
    """F1 where it is large enough and enough of the answer is right, else 0."""
    share, got = f1(answer, reference), normalised(answer).split()
    shared = (Counter(got) & Counter(normalised(reference).split())).total()
    enough = not precision or shared > precision * len(got)
    return share if share >= at_least and enough else 0.0
