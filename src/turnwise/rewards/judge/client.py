"""Client of a judge: equal requests are sent once, answers are cached, and unreadable answers are requested again."""

import asyncio
import fcntl
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from turnwise.concurrency.per_loop import PerLoop
from turnwise.core.errors import InfrastructureFailure, UserError, format_times
from turnwise.core.messages import ContentPart, Message, TextPart, assistant, user
from turnwise.models.loading.catalogue import cache_folder
from turnwise.rewards.judge.budget import JudgeCounts
from turnwise.rewards.judge.prompts import RETRY_REQUEST, UnreadableVerdict, escape_markers
from turnwise.rewards.judge.settings import LOCAL, JudgeSettings
from turnwise.tools.tool import NeedsServer

CACHE_FILE = "answers.jsonl"
MAX_QUOTED_CHARS = 2000
"""Length at which an unreadable answer is cut when the judge is shown it again."""
MAX_REPORTED_CHARS = 120
"""Length at which an unreadable answer is cut in the error."""
CHARS_PER_TOKEN = 2
"""For estimates. Low, so that a budget also holds in languages with short tokens."""
TEMPLATE_TOKENS = 16
"""Tokens that a chat template adds to a message, about."""
IMAGE_TOKENS = 1500
"""Tokens of an image, for estimates. More than most endpoints count for the images of environments."""

Verdict = TypeVar("Verdict")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeAnswer:
    text: str
    cut: bool
    """Whether a token limit ended the answer."""


class JudgeModel(Protocol):
    """The model that judges: behind an endpoint, or loaded in this process."""

    @property
    def identity(self) -> tuple[str, str]:
        """Location and name of the model. Part of the cache key."""
        ...

    async def __call__(self, messages: Sequence[Message]) -> JudgeAnswer:
        """Return the model's answer and count its cost. Raises UserError or InfrastructureFailure."""
        ...

    async def close(self) -> None: ...


def estimate_tokens(messages: Sequence[Message]) -> int:
    return sum(
        TEMPLATE_TOKENS
        + math.ceil(len(message.content.encode()) / CHARS_PER_TOKEN)
        + IMAGE_TOKENS * len(message.images)
        for message in messages
    )


def identify_messages(messages: Sequence[Message]) -> list[Any]:
    """Return JSON that is equal for equal messages alone. Images are represented by a hash."""
    return [
        (message.role, [*map(_identify_part, message.parts)] if message.images else message.content)
        for message in messages
    ]


def _identify_part(part: ContentPart) -> tuple[str, str]:
    return ("text", part.text) if isinstance(part, TextPart) else ("image", hashlib.sha256(part.data).hexdigest())


def request_key(identity: tuple[str, str], messages: Sequence[Message], temperature: float, max_tokens: int) -> str:
    """Return the cache key, which is equal for equal requests in every process."""
    text = json.dumps([*identity, identify_messages(messages), temperature, max_tokens], ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


class AnswerCache:
    """Answers on disk, one JSON object per line. Any number of processes may append at the same time."""

    def __init__(self, folder: str) -> None:
        """`folder`: empty for the one in turnwise's cache."""
        self._file = (Path(folder).expanduser() if folder else cache_folder() / "judge") / CACHE_FILE
        self._answers: dict[str, str] = {}
        self._offset = 0
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise UserError(
                f"The judge's cache {self._file} cannot be written ({error}): set cache to another folder."
            ) from error

    def get(self, key: str) -> str | None:
        """Return the answer, also one that another process has added since."""
        if key not in self._answers:
            self._read_new_lines()
        return self._answers.get(key)

    def put(self, key: str, text: str) -> None:
        """Append one whole line. After a line that a killed process left unfinished, a new line is started."""
        line = json.dumps({"key": key, "text": text}) + "\n"
        with self._file.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.seek(0, os.SEEK_END)
            torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
            file.write(("\n" * torn + line).encode("ascii"))
        self._answers[key] = text

    def _read_new_lines(self) -> None:
        with self._file.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._offset:
                self._offset = 0
            file.seek(self._offset)
            whole = file.read().rpartition(b"\n")
        self._offset += len(whole[0]) + len(whole[1])
        for line in whole[0].split(b"\n"):
            self._add(line)

    def _add(self, line: bytes) -> None:
        """Skip a line that cannot be read: its request is sent again."""
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(row, dict) and isinstance(row.get("key"), str) and isinstance(row.get("text"), str):
            self._answers.setdefault(row["key"], row["text"])


class JudgeClient:
    def __init__(self, settings: JudgeSettings, model: JudgeModel, cache: AnswerCache, counts: JudgeCounts) -> None:
        self.counts = counts
        self._settings, self._model, self._cache = settings, model, cache
        self._gate = PerLoop(lambda: asyncio.Semaphore(settings.concurrency))
        self._running: PerLoop[dict[str, asyncio.Task[str]]] = PerLoop(dict)
        self._failures: dict[str, str] = {}
        """Errors by request key, of judges that would give the same answers again."""

    async def ask(self, messages: Sequence[Message], parse: Callable[[str], Verdict]) -> Verdict:
        """Return the verdict that `parse` reads from the answer; it raises UnreadableVerdict if there is none."""
        settings = self._settings
        key = request_key(self._model.identity, messages, settings.temperature, settings.max_tokens)
        cached = self._cache.get(key)
        if cached is not None:
            try:
                verdict = parse(cached)
                self.counts.cached += 1
                return verdict
            except UnreadableVerdict:  # the file was edited: ask again
                pass
        if key in self._failures:
            raise InfrastructureFailure(self._failures[key])
        return parse(await self._ask_shared(key, messages, parse))

    async def check_server(self) -> None:
        if isinstance(self._model, NeedsServer):
            await self._model.check_server()

    async def close(self) -> None:
        """Close the connections of the running event loop. They are opened again if a verdict is asked for."""
        await self._model.close()

    async def _ask_shared(self, key: str, messages: Sequence[Message], parse: Callable[[str], Any]) -> str:
        running = self._running.get()
        task = running.get(key)
        if task is None:
            task = running[key] = asyncio.create_task(self._ask(key, messages, parse))
            task.add_done_callback(lambda done: _forget(running, key, done))
        else:
            self.counts.cached += 1
        return await asyncio.shield(task)  # another caller may wait for it, and it is paid for

    async def _ask(self, key: str, messages: Sequence[Message], parse: Callable[[str], Any]) -> str:
        """Return a readable answer, cached under the first request however often the judge was asked."""
        conversation, failure = list(messages), ""
        for _ in range(self._settings.asks):
            answer = await self._complete(conversation)
            try:
                parse(answer.text)
            except UnreadableVerdict as unreadable:
                self.counts.unreadable += 1
                problem = "it was cut at a token limit" if answer.cut else str(unreadable)
                failure = f"{problem}{self._describe_answer(answer)}"
                quoted = escape_markers(answer.text[:MAX_QUOTED_CHARS]).strip() or "(nothing)"
                conversation = [*messages, assistant(quoted), user(f"That cannot be read: {problem}. {RETRY_REQUEST}")]
            else:
                self._cache.put(key, answer.text)
                return answer.text
        count = format_times(self._settings.asks)
        message = f"the judge {self._settings.model} gave no verdict (asked {count}): {failure}"
        if self._settings.temperature == 0 or self._settings.endpoint == LOCAL:
            self._failures[key] = message
        raise InfrastructureFailure(message)

    def _describe_answer(self, answer: JudgeAnswer) -> str:
        """Return how to fix an answer that was cut, and the first characters of any unreadable answer."""
        advice = f"raise its max_tokens above {self._settings.max_tokens}, or the limit of its server if that is lower"
        fix = f" ({advice})" if answer.cut else ""
        text = " ".join(answer.text.split())
        return f"{fix}; its last answer: {json.dumps(text[:MAX_REPORTED_CHARS], ensure_ascii=False)}"

    async def _complete(self, messages: Sequence[Message]) -> JudgeAnswer:
        async with self._gate.get():
            began = time.monotonic()
            try:
                return await self._model(messages)
            finally:
                self.counts.seconds += time.monotonic() - began


def _forget(running: dict[str, asyncio.Task[str]], key: str, done: asyncio.Task[str]) -> None:
    """Remove a finished request, and mark its exception as retrieved in case all waiting callers were cancelled."""
    running.pop(key, None)
    if not done.cancelled():
        done.exception()
