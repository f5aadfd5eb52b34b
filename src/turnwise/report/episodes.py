"""Episodes in a report: which of them, and how one reads, with the state's picture beside every turn."""

import heapq
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count as counted
from pathlib import Path
from typing import Any

from turnwise.record.jsonl_follower import parse_line
from turnwise.record.metrics import finite_number
from turnwise.report.formatting import format_decimal
from turnwise.report.page import escaped, folded
from turnwise.report.pictures.picture import draw_picture_svg

SUCCEEDED = "succeeded"
GOOD, BAD = 3, 3
"""How many of each are shown."""
MAX_TURNS = 30
MAX_TEXT, MAX_CONTEXT = 4000, 6000
BRIEF = 240
MAX_LINE = 32 * 1024 * 1024
RECENT_STEPS = 5
"""Recorded steps, counted from the last, that a run's episodes are chosen from."""
THOUGHT = re.compile(r"^(?:\s*<think>)?.*?</think>", re.DOTALL)


def choose_from_index(index: Iterable[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The best and the worst of a run's last steps, each of another task where there are enough."""
    by_step: dict[int, list[Mapping[str, Any]]] = {}
    for row in index:
        if isinstance(step := row.get("step"), int):
            by_step.setdefault(step, []).append(row)
            if len(by_step) > RECENT_STEPS:
                del by_step[min(by_step)]
    recent = [row for rows in by_step.values() for row in rows]
    won = sorted(
        (row for row in recent if row.get("status") == SUCCEEDED), key=lambda row: (-_reward(row), -row["step"])
    )
    lost = sorted(
        (row for row in recent if row.get("status") != SUCCEEDED), key=lambda row: (_reward(row), -row["step"])
    )
    return _distinct(won, GOOD), _distinct(lost, BAD)


def choose_from_file(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int, int]:
    """The best and the worst of a model's evaluation, how many succeeded and how many there are.

    The file may be large: it is read line by line and no more is kept than is shown.
    """
    good: list[tuple[float, int, dict[str, Any]]] = []
    bad: list[tuple[float, int, dict[str, Any]]] = []
    order = counted()
    succeeded = played = 0
    for row in _rows(path):
        won = row.get("status") == SUCCEEDED
        played, succeeded = played + 1, succeeded + won
        heap, size = (good, GOOD) if won else (bad, BAD)
        entry = (_reward(row) if won else -_reward(row), -next(order), row)
        heapq.heappush(heap, entry) if len(heap) < size else heapq.heappushpop(heap, entry)
    return _unheaped(good), _unheaped(bad), succeeded, played


def read_trajectory_at(path: Path, offset: Any, length: Any) -> dict[str, Any] | None:
    """The trajectory that an index says is there; None where it is not."""
    if not (isinstance(offset, int) and isinstance(length, int) and offset >= 0 and 0 < length <= MAX_LINE):
        return None
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return parse_line(file.read(length))
    except OSError:
        return None


def episode_html(row: Mapping[str, Any], heading: str) -> str:
    """One trajectory: every turn's picture, what the model was told and what it said."""
    status = str(row.get("status", ""))
    won = status == SUCCEEDED
    sign = "\N{CHECK MARK} " if won else "\N{MULTIPLICATION X} "
    turns = [turn for turn in _listed(row.get("turns")) if isinstance(turn, Mapping)]
    many = "1 turn" if len(turns) == 1 else f"{len(turns)} turns"
    facts = f"reward {format_decimal(finite_number(row.get('reward')))}, {many}, {row.get('tokens', 0)} sampled tokens"
    parts = [
        f'<article class="episode {"won" if won else "lost"}"><h3>{escaped(heading)}</h3>',
        f'<div class="soft"><span class="status">{sign}{escaped(status, 60)}</span> · {escaped(facts, 200)}</div>',
        f'<div class="turns {"brief" if all(map(_brief, turns)) else "long"}">',
        _start(row.get("start")),
        *(_turn(turn, number) for number, turn in enumerate(turns[:MAX_TURNS], start=1)),
        "</div>",
    ]
    if len(turns) > MAX_TURNS:
        parts.append(f'<div class="soft">{len(turns) - MAX_TURNS} turns more</div>')
    return "".join([*parts, "</article>"])


def episode_heading(row: Mapping[str, Any]) -> str:
    task = row.get("task")
    task = task if isinstance(task, Mapping) else {}
    return f"{task.get('env', 'episode')}, seed {task.get('seed', '?')}"[:200]


def _turn(turn: Mapping[str, Any], number: int) -> str:
    message = turn.get("message")
    said = str(message.get("content", "")) if isinstance(message, Mapping) else ""
    notes = [f"turn {number}", f"reward {format_decimal(finite_number(turn.get('turn_reward', turn.get('reward'))))}"]
    notes += ["invalid"] if turn.get("invalid") else []
    notes += ["cut at the token limit"] if turn.get("stop") == "length" else []
    notes += _advantage(turn.get("advantages"))
    context = str(turn.get("context", ""))
    told = f"<pre>{escaped(context, MAX_CONTEXT)}</pre>"
    shown = folded(f"context, {len(context):,} characters", told) if context.strip() else ""
    return (
        f'<div class="turn"><div class="words"><div class="soft">{escaped(" · ".join(notes))}</div>'
        f'<pre class="said">{_said(said)}</pre>{shown}</div>{_picture(turn.get("picture"))}</div>'
    )


def _start(picture: Any) -> str:
    drawn = _picture(picture)
    return f'<div class="turn"><div class="words soft">start</div>{drawn}</div>' if drawn else ""


def _brief(turn: Mapping[str, Any]) -> bool:
    """Whether it fits a narrow card, so that several stand side by side."""
    message = turn.get("message")
    said = str(message.get("content", "")) if isinstance(message, Mapping) else ""
    return len(said) <= BRIEF and isinstance(turn.get("picture"), Mapping)


def _said(content: str) -> str:
    """Thinking apart from the answer. The opening tag may be the prompt's own, then only the closing one is here."""
    thought = THOUGHT.match(content[:MAX_TEXT])
    if thought is None:
        return escaped(content, MAX_TEXT)
    end = thought.end()
    return f'<span class="think">{escaped(content[:end])}</span>{escaped(content[end:], MAX_TEXT)}'


def _advantage(values: Any) -> list[str]:
    numbers = [number for value in _listed(values) if (number := finite_number(value)) is not None]
    return [f"advantage {format_decimal(sum(numbers) / len(numbers))}"] if numbers else []


def _picture(picture: Any) -> str:
    return f'<div class="picture">{draw_picture_svg(picture)}</div>' if isinstance(picture, Mapping) else ""


def _reward(row: Mapping[str, Any]) -> float:
    return finite_number(row.get("reward")) or 0.0


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else []


def _distinct(rows: Iterable[Mapping[str, Any]], size: int) -> list[Mapping[str, Any]]:
    first: dict[Any, Mapping[str, Any]] = {}
    rest: list[Mapping[str, Any]] = []
    for row in rows:
        task = (str(row.get("environment")), str(row.get("seed")))
        if task in first:
            rest.append(row)
        first.setdefault(task, row)
        if len(first) == size:
            break
    return [*first.values(), *rest][:size]


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE):
                if line.endswith(b"\n") and (row := parse_line(line)) is not None:
                    yield row
    except OSError:
        return


def _unheaped(heap: list[tuple[float, int, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [row for _, _, row in sorted(heap, key=lambda entry: entry[:2], reverse=True)]
