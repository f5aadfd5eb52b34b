"""What a judge answered, read strictly: the JSON that was asked for, or nothing at all."""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

FENCED = re.compile(r"^```(?:json)?[ \t\r]*\n(.*)```$", re.DOTALL)
THOUGHT = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)
LONGEST = 100_000
WINNERS = {"1": 1.0, "2": 0.0, "tie": 0.5}
"""What a comparison is worth to the first of the two."""


class Unreadable(Exception):
    """The judge's answer is no verdict; in words that it is told itself."""


def read_score(text: str, scale: tuple[float, float]) -> float:
    """{"score": 7} as a number from 0 to 1."""
    return _scaled(_field(_object(text), "score"), scale)


def read_scores(text: str, labels: Sequence[str], scale: tuple[float, float]) -> dict[str, float]:
    """{"scores": {"1": 7, "2": 3}}: exactly one for each label."""
    scores = _field(_object(text), "scores")
    if not isinstance(scores, dict) or scores.keys() != set(labels):
        raise Unreadable(f"scores must hold exactly one score for each of {', '.join(labels)}")
    return {label: _scaled(scores[label], scale) for label in labels}


def read_winner(text: str) -> float:
    """{"winner": "1"}: 1 for the first, 0 for the second, one half for neither."""
    winner = _field(_object(text), "winner")
    if isinstance(winner, bool) or not isinstance(winner, int | str) or str(winner) not in WINNERS:
        raise Unreadable('winner must be "1", "2" or "tie"')
    return WINNERS[str(winner)]


def _object(text: str) -> dict[str, Any]:
    """The whole answer is one object; a code fence around it, or thinking before it, is left out."""
    text = THOUGHT.sub("", text[:LONGEST]).strip()
    fenced = FENCED.match(text)
    try:
        answer = json.loads(fenced[1] if fenced else text, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        raise Unreadable("that is not one JSON object and nothing else") from error
    if not isinstance(answer, dict):
        raise Unreadable("that is no JSON object")
    return answer


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key comes twice")
    return found


def _field(answer: dict[str, Any], name: str) -> Any:
    if name not in answer or not answer.keys() <= {name, "reason"}:
        raise Unreadable(f'the object must hold "{name}", and besides it "reason" alone')
    return answer[name]


def _scaled(score: Any, scale: tuple[float, float]) -> float:
    low, high = scale
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise Unreadable("a score must be a number")
    if not low <= score <= high:
        raise Unreadable(f"a score must lie between {low:g} and {high:g}")
    return (score - low) / (high - low)
