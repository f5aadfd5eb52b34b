"""Trajectories as JSON rows and back, exactly: token ids, log-probabilities and rewards as they were trained on.

JSON lacks NaN and infinities. They are stored as the strings "NaN", "Infinity" and "-Infinity", which Python's `float`
and JavaScript's `Number` both read.
"""

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from turnwise.core.constraint import Constraint
from turnwise.core.errors import UserError
from turnwise.core.messages import ContentPart, ImagePart, Message, Picture, TextPart, ToolCall, text_parts
from turnwise.core.task import Task
from turnwise.core.trajectory import Sampler, Span, Status, Stop, TokenName, Trajectory, Turn
from turnwise.data.replay import Replay, RowCodec
from turnwise.files.disk import append_bytes
from turnwise.record.images import span_from_row, span_to_row
from turnwise.record.jsonl import (
    drop_partial_line,
    encode_row,
    read_jsonl,
    to_json_number,
    to_json_numbers,
    to_json_value,
)

TOKEN_COLUMNS = ("advantages", "learner_logprobs", "entropies", "loss_mask")
"""Values per sampled token of a turn, in addition to its id and the sampler's log-probability. None: not trained.

The learner's log-probability and the entropy are from the first update that used the token.
"""

ID_KEYS = ("context_ids", "action_ids")

PerTurn = Sequence[Sequence[float] | None]
NO_COLUMNS: Mapping[str, PerTurn] = {}


def trajectory_to_row(
    trajectory: Trajectory,
    *,
    step: int,
    group: int,
    decode: Callable[[Sequence[int]], str],
    columns: Mapping[str, PerTurn] = NO_COLUMNS,
    evaluation: str | None = None,
) -> dict[str, Any]:
    """Convert a trajectory to its row. `columns`: values per sampled token and turn, by the names of TOKEN_COLUMNS.

    `decode` adds the contexts as text, for readers without a tokenizer. `evaluation`: name of the evaluation during
    training that the episode belongs to; other rows have no such key.
    """
    if mismatched := [name for name, values in columns.items() if len(values) != len(trajectory.turns)]:
        raise ValueError(f"{len(trajectory.turns)} turns but {len(columns[mismatched[0]])} of {mismatched[0]}")
    return {
        "step": step,
        **({} if evaluation is None else {"evaluation": evaluation}),
        "group": group,
        "member": trajectory.member,
        "attempt": trajectory.attempt,
        "task": _task_row(trajectory.task),
        "status": trajectory.status.value,
        "reward": to_json_number(trajectory.total_reward),
        "tokens": trajectory.num_sampled,
        "rewards": {name: to_json_number(value) for name, value in trajectory.rewards.items()},
        "timings": {name: to_json_number(value) for name, value in trajectory.timings.items()},
        "start": None if trajectory.start is None else _picture_row(trajectory.start),
        "sampler": None if trajectory.sampler is None else asdict(trajectory.sampler),
        "turns": [
            _turn_row(turn, turn_reward, {name: values[number] for name, values in columns.items()}, decode)
            for number, (turn, turn_reward) in enumerate(zip(trajectory.turns, trajectory.turn_rewards, strict=True))
        ],
    }


def trajectory_from_row(row: Mapping[str, Any]) -> Trajectory:
    """Convert a row back to its trajectory. Raise a UserError if it is not one."""
    try:
        return _trajectory(row)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"Not a trajectory ({error!r}). Restore the file from a copy of the run.") from error


def as_recorded(trajectory: Trajectory) -> Trajectory:
    """Return the trajectory as it is read from its row: without what rows leave out, with plain JSON values."""
    row = trajectory_to_row(trajectory, step=0, group=0, decode=lambda _: "")
    return trajectory_from_row(json.loads(encode_row(row)))


def _task_row(task: Task) -> dict[str, Any]:
    return {"env": task.env, "seed": task.seed, "split": task.split, "params": to_json_value(task.params)}


def _turn_row(
    turn: Turn,
    turn_reward: float,
    columns: Mapping[str, Sequence[float] | None],
    decode: Callable[[Sequence[int]], str],
) -> dict[str, Any]:
    for name, values in columns.items():
        if values is not None and len(values) != len(turn.action_ids):
            raise ValueError(f"{len(turn.action_ids)} sampled tokens but {len(values)} {name}")
    return {
        "context": decode(turn.context_ids),
        "context_ids": turn.context_ids,
        "extends": turn.extends,
        "action_ids": turn.action_ids,
        "action_logprobs": to_json_numbers(turn.action_logprobs),
        **{name: None if (values := columns.get(name)) is None else to_json_numbers(values) for name in TOKEN_COLUMNS},
        "temperature": to_json_number(turn.temperature),
        "policy_version": _version_column(turn.policy_versions),
        "stop": turn.stop.value,
        "spans": [[span.name, span.start, span.end] for span in turn.spans],
        "message": _message_row(turn.message),
        "reward": to_json_number(turn.reward),
        "turn_reward": to_json_number(turn_reward),
        "invalid": turn.invalid,
        "info": to_json_value(turn.info),
        "picture": None if turn.picture is None else _picture_row(turn.picture),
        **({"images": [span_to_row(span) for span in turn.images]} if turn.images else {}),
        **({"grammar": turn.constraint.grammar} if turn.constraint is not None else {}),
    }


def _message_row(message: Message) -> dict[str, Any]:
    """Write the text; parts and tool calls only for messages that have images or calls."""
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.parts != text_parts(message.content):
        row["parts"] = [
            {"type": "text", "text": part.text}
            if isinstance(part, TextPart)
            else {"type": "image", "data": base64.b64encode(part.data).decode("ascii")}
            for part in message.parts
        ]
    if message.tool_calls:
        row["tool_calls"] = [
            {"name": call.name, "arguments": call.arguments, "call_id": call.call_id} for call in message.tool_calls
        ]
    if message.call_id:
        row["call_id"] = message.call_id
    return row


def _picture_row(picture: Picture) -> dict[str, Any]:
    row = {"rows": picture.rows, "caption": picture.caption, "info": to_json_value(picture.info)}
    return {**row, "html": picture.html} if picture.html else row


def _trajectory(row: Mapping[str, Any]) -> Trajectory:
    return Trajectory(
        task=Task(**row["task"]),
        member=row["member"],
        attempt=row["attempt"],
        turns=tuple(_turn(turn) for turn in row["turns"]),
        status=Status(row["status"]),
        turn_rewards=tuple(float(turn["turn_reward"]) for turn in row["turns"]),
        rewards={name: float(value) for name, value in row["rewards"].items()},
        timings={name: float(value) for name, value in row["timings"].items()},
        start=None if row.get("start") is None else _picture(row["start"]),
        sampler=sampler_from_row(row.get("sampler")),
    )


def sampler_from_row(row: Mapping[str, Any] | None) -> Sampler | None:
    """Return the sampler of a trajectory's column `sampler`; None if it is unknown."""
    if row is None:
        return None
    return Sampler(temperature=float(row["temperature"]), top_p=float(row["top_p"]), top_k=int(row["top_k"]))


def _version_column(versions: Sequence[int]) -> int | list[int] | None:
    """Return one number if all tokens have the same version; None if versions are unknown."""
    distinct = set(versions)
    return list(versions) if len(distinct) > 1 else next(iter(distinct), None)


def _versions(row: Mapping[str, Any]) -> tuple[int, ...]:
    column = row["policy_version"]
    if isinstance(column, list):
        return tuple(column)
    return () if column is None else (column,) * len(row["action_ids"])


def _turn(row: Mapping[str, Any]) -> Turn:
    return Turn(
        context_ids=tuple(row["context_ids"]),
        extends=row["extends"],
        action_ids=tuple(row["action_ids"]),
        action_logprobs=tuple(map(float, row["action_logprobs"])),
        temperature=float(row["temperature"]),
        policy_versions=_versions(row),
        spans=tuple(Span(name=name, start=start, end=end) for name, start, end in row["spans"]),
        message=_message(row["message"]),
        stop=Stop(row["stop"]),
        reward=float(row["reward"]),
        invalid=row["invalid"],
        info=row["info"],
        picture=None if row["picture"] is None else _picture(row["picture"]),
        images=tuple(span_from_row(span) for span in row.get("images", ())),
        constraint=Constraint(grammar=row["grammar"]) if "grammar" in row else None,
    )


def _message(row: Mapping[str, Any]) -> Message:
    return Message(
        role=row["role"],
        parts=tuple(map(_part, row["parts"])) if "parts" in row else text_parts(row["content"]),
        tool_calls=tuple(ToolCall(**call) for call in row.get("tool_calls", ())),
        call_id=row.get("call_id", ""),
    )


def _part(row: Mapping[str, Any]) -> ContentPart:
    if row["type"] == "text":
        return TextPart(text=row["text"])
    return ImagePart(data=base64.b64decode(row["data"], validate=True))


def _picture(row: Mapping[str, Any]) -> Picture:
    rows = tuple(tuple(cells) for cells in row["rows"])
    return Picture(rows=rows, caption=row["caption"], info=row["info"], html=row.get("html", ""))


class TokenNamesFile:
    """File beside the trajectories with the text of every token id that occurs in them: one line per id.

    Tokens of images, whose ids are below 0, have no text: the rows of turns list their images.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: set[int] | None = None

    def add(self, rows: Iterable[Mapping[str, Any]], name_token: Callable[[int], TokenName]) -> None:
        """Add the ids of these trajectory rows that are not in the file yet."""
        if self._known is None:
            drop_partial_line(self._path)
            self._known = {row["id"] for _, row in read_jsonl(self._path)}
        turns = [turn for row in rows for turn in row["turns"]]
        new = sorted(
            {token_id for turn in turns for name in ID_KEYS for token_id in turn[name] if token_id >= 0} - self._known
        )
        if new:
            append_bytes(self._path, b"".join(encode_row(asdict(name_token(token_id))) + b"\n" for token_id in new))
            self._known.update(new)


def open_replay(folder: Path, capacity: int) -> Replay:
    """Open the replay buffer in a folder, or create an empty one."""
    return Replay(folder, capacity=capacity, codec=RowCodec(to_row=_replay_row, from_row=trajectory_from_row))


def _replay_row(trajectory: Trajectory) -> dict[str, Any]:
    """Return the row without texts that follow from the ids, and without what differs when the episode is repeated."""
    return trajectory_to_row(replace(trajectory, timings={}), step=0, group=0, decode=lambda _: "")
