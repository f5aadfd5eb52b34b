"""Episodes in an HTML report: which ones are shown, and what is shown of each."""

import base64
import heapq
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from markupsafe import Markup

from turnwise.pictures.image import PNG_SIGNATURE
from turnwise.pictures.image_store import image_file
from turnwise.pictures.picture import draw_picture_svg, is_only_html
from turnwise.record.images import image_hashes
from turnwise.record.steps import finite_number
from turnwise.report.formatting import format_decimal, shorten
from turnwise.text.json_objects import parse_object

STATUS_WORDS = {
    "truncated_turns": "out of turns",
    "truncated_tokens": "out of tokens",
    "truncated_time": "out of time",
    "truncated_limit": "cut by the data's time limit",
}
"""Plain words for statuses, as in the viewer."""
SUCCEEDED = "succeeded"
NUM_BEST, NUM_WORST = 3, 3
MAX_TURNS = 30
MAX_TEXT, MAX_CONTEXT = 4000, 6000
MAX_BRIEF_TEXT = 240
"""Characters of a message that fit a narrow card beside others."""
MAX_LINE = 32 * 1024 * 1024
MAX_IMAGES, MAX_SHOWN_IMAGE_BYTES = 4, 256 << 10
"""Images per turn, and bytes of each: a report stays small enough to send."""
RECENT_STEPS = 5
"""A run's episodes are chosen from this many of its last recorded steps."""
THOUGHT = re.compile(r"^(?:\s*<think>)?.*?</think>", re.DOTALL)
"""The prompt may end with the opening tag; the message then has only the closing one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnView:
    notes: str
    """Number, reward, advantage, invalid action and stop reason, in one line."""
    thought: str
    answer: str
    context: str
    """Empty if the turn added no context."""
    context_length: str
    picture: Markup | None
    images: "list[ImageView]"
    """Images in the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageView:
    source: str
    """Data URL, so that the report is one file; empty if the image cannot be shown."""
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeView:
    """The values that the template `episode_card` prints. Texts are shortened but not escaped."""

    heading: str
    succeeded: bool
    status: str
    facts: str
    brief: bool
    """All turns fit narrow cards, so that several are shown side by side."""
    start: Markup | None
    turns: list[TurnView]
    hidden_turns: int


def choose_from_index(index: Iterable[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Choose the best and the worst training episodes of a run's last steps, of different tasks if possible."""
    by_step: dict[int, list[Mapping[str, Any]]] = {}
    for row in index:
        if isinstance(step := row.get("step"), int) and "evaluation" not in row:
            by_step.setdefault(step, []).append(row)
            if len(by_step) > RECENT_STEPS:
                del by_step[min(by_step)]
    recent = [row for rows in by_step.values() for row in rows]
    succeeded = [row for row in recent if row.get("status") == SUCCEEDED]
    failed = [row for row in recent if row.get("status") != SUCCEEDED]
    best = sorted(succeeded, key=lambda row: (-_reward(row), -row["step"]))
    worst = sorted(failed, key=lambda row: (_reward(row), -row["step"]))
    return _prefer_distinct_tasks(best, NUM_BEST), _prefer_distinct_tasks(worst, NUM_WORST)


def choose_from_file(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int, int]:
    """Return the best and the worst episodes of an evaluated model, the number of successes and of episodes.

    The file may be large: it is read line by line, and only the chosen episodes are kept.
    """
    best: list[tuple[float, int, dict[str, Any]]] = []
    worst: list[tuple[float, int, dict[str, Any]]] = []
    order = count()
    num_succeeded = num_episodes = 0
    for row in _read_rows(path):
        succeeded = row.get("status") == SUCCEEDED
        num_episodes, num_succeeded = num_episodes + 1, num_succeeded + succeeded
        heap, size = (best, NUM_BEST) if succeeded else (worst, NUM_WORST)
        entry = (_reward(row) if succeeded else -_reward(row), -next(order), row)
        heapq.heappush(heap, entry) if len(heap) < size else heapq.heappushpop(heap, entry)
    return _sort_heap(best), _sort_heap(worst), num_succeeded, num_episodes


def read_trajectory_at(path: Path, offset: Any, length: Any) -> dict[str, Any] | None:
    """Return the trajectory that an index entry points at, or None if it cannot be read."""
    if not (isinstance(offset, int) and isinstance(length, int) and offset >= 0 and 0 < length <= MAX_LINE):
        return None
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return parse_object(file.read(length))
    except OSError:
        return None


def episode_heading(row: Mapping[str, Any]) -> str:
    task = row.get("task")
    task = task if isinstance(task, Mapping) else {}
    return f"{task.get('env', 'episode')}, seed {task.get('seed', '?')}"[:200]


def view_episode(row: Mapping[str, Any], heading: str, images: Path) -> EpisodeView:
    """Extract from a stored trajectory what the report shows of it. `images`: folder of the images in its contexts."""
    status = str(row.get("status", ""))
    turns = [turn for turn in _as_list(row.get("turns")) if isinstance(turn, Mapping)]
    num_turns = "1 turn" if len(turns) == 1 else f"{len(turns)} turns"
    reward = format_decimal(finite_number(row.get("reward")))
    return EpisodeView(
        heading=heading,
        succeeded=status == SUCCEEDED,
        status=shorten(STATUS_WORDS.get(status, status), 60),
        facts=shorten(f"reward {reward}, {num_turns}, {row.get('tokens', 0)} sampled tokens", 200),
        brief=all(_is_brief(turn) for turn in turns),
        start=_draw(row.get("start")),
        turns=[_view_turn(turn, number, images) for number, turn in enumerate(turns[:MAX_TURNS], start=1)],
        hidden_turns=max(len(turns) - MAX_TURNS, 0),
    )


def _view_turn(turn: Mapping[str, Any], number: int, images: Path) -> TurnView:
    notes = [f"turn {number}", f"reward {format_decimal(finite_number(turn.get('turn_reward', turn.get('reward'))))}"]
    notes += ["invalid action"] if turn.get("invalid") else []
    notes += ["stopped at the token limit"] if turn.get("stop") == "length" else []
    notes += _mean_advantage(turn.get("advantages"))
    thought, answer = _split_thought(_message_text(turn))
    context = str(turn.get("context", ""))
    return TurnView(
        notes=" · ".join(notes),
        thought=thought,
        answer=shorten(answer, MAX_TEXT),
        context=shorten(context, MAX_CONTEXT) if context.strip() else "",
        context_length=f"{len(context):,}",
        picture=_draw(turn.get("picture")),
        images=[_view_image(images, image_hashe) for image_hashe in image_hashes(turn)[:MAX_IMAGES]],
    )


def _view_image(folder: Path, image_hash: str) -> ImageView:
    """Return the image, or a note if its file is missing, too large or not an image."""
    try:
        with image_file(folder, image_hash).open("rb") as file:
            data = file.read(MAX_SHOWN_IMAGE_BYTES + 1)
    except OSError:
        return ImageView(source="", note=f"image {image_hash} is not in the run folder")
    if len(data) > MAX_SHOWN_IMAGE_BYTES or not data.startswith(PNG_SIGNATURE):
        return ImageView(source="", note=f"image {image_hash} is too large to show, or not a PNG file")
    return ImageView(source=f"data:image/png;base64,{base64.b64encode(data).decode('ascii')}", note=image_hash)


def _message_text(turn: Mapping[str, Any]) -> str:
    message = turn.get("message")
    return str(message.get("content", "")) if isinstance(message, Mapping) else ""


def _is_brief(turn: Mapping[str, Any]) -> bool:
    return len(_message_text(turn)) <= MAX_BRIEF_TEXT and isinstance(turn.get("picture"), Mapping)


def _split_thought(content: str) -> tuple[str, str]:
    match = THOUGHT.match(content[:MAX_TEXT])
    end = 0 if match is None else match.end()
    return content[:end], content[end:]


def _mean_advantage(values: Any) -> list[str]:
    numbers = [number for value in _as_list(values) if (number := finite_number(value)) is not None]
    return [f"advantage {format_decimal(sum(numbers) / len(numbers))}"] if numbers else []


def _draw(picture: Any) -> Markup | None:
    if not isinstance(picture, Mapping) or is_only_html(picture):
        return None
    return Markup(draw_picture_svg(picture))


def _reward(row: Mapping[str, Any]) -> float:
    return finite_number(row.get("reward")) or 0.0


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else []


def _prefer_distinct_tasks(rows: Iterable[Mapping[str, Any]], size: int) -> list[Mapping[str, Any]]:
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


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE):
                if line.endswith(b"\n") and (row := parse_object(line)) is not None:
                    yield row
    except OSError:
        return


def _sort_heap(heap: list[tuple[float, int, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [row for _, _, row in sorted(heap, key=lambda entry: entry[:2], reverse=True)]
