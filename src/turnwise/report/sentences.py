"""Sentences of a run's explanation, and the topics that they are shown under."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from turnwise.report.run_facts import RunFacts

Topic = Literal["success", "behaviour", "failures", "learning", "advice"]
TITLES: Mapping[Topic, str] = {
    "success": "What happened",
    "behaviour": "What the agent does now",
    "failures": "What it still fails",
    "learning": "What limits learning",
    "advice": "What to try",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    topic: Topic
    text: str


Rule = Callable[[RunFacts], Iterator[Sentence]]


def by_title(sentences: Sequence[Sentence]) -> list[tuple[str, list[str]]]:
    """Return the texts under the titles of their topics."""
    sections = [
        (title, [sentence.text for sentence in sentences if sentence.topic == topic]) for topic, title in TITLES.items()
    ]
    return [(title, texts) for title, texts in sections if texts]
