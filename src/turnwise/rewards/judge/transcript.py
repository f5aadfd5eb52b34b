"""What happened, as a judge is shown it."""

from collections.abc import Callable, Iterable, Sequence

from turnwise.core.messages import Message
from turnwise.core.trajectory import Trajectory, Turn

Entry = tuple[str, str]
"""Who spoke (`AGENT`, or what else the episode held), and what was said."""
Transcript = tuple[Entry, ...]
Decode = Callable[[Sequence[int]], str]
AGENT, WORLD = "agent", "environment"
LEAST = 200
"""Characters that are left of every entry."""


def of_messages(messages: Iterable[Message]) -> Transcript:
    return tuple((AGENT if message.role == "assistant" else WORLD, message.content) for message in messages)


def of_trajectory(trajectory: Trajectory, decode: Decode) -> Transcript:
    """`decode`: token ids as text; a trajectory holds what the agent was shown as ids alone, unless it has messages."""
    entries: list[Entry] = []
    for turn in trajectory.turns:
        shown = _shown(turn, decode)
        if shown:
            entries.append((WORLD, shown))
        entries.append((AGENT, turn.message.content))
    return tuple(entries)


def _shown(turn: Turn, decode: Decode) -> str:
    if turn.context_ids:
        return decode(turn.context_ids)
    return "\n".join(str(message["content"]) for message in turn.info.get("chat_messages", ()))


def shared_length(transcripts: Sequence[Transcript]) -> int:
    """How many entries all of them begin with."""
    length = 0
    for entries in zip(*transcripts, strict=False):
        if len(set(entries)) > 1:
            break
        length += 1
    return length


def limits_for(entries: Transcript, max_chars: int) -> list[int]:
    """Characters for each entry, so that all together take about `max_chars`: the long ones lose the most."""
    total = max(1, sum(len(text) for _, text in entries))
    return [max(LEAST, len(text) * max_chars // total) if total > max_chars else max_chars for _, text in entries]
