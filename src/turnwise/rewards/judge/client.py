"""Where a judge sits: equal requests are asked once, verdicts are kept, and what cannot be read is asked again."""

import asyncio
import fcntl
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.core.messages import Message, assistant, user
from turnwise.models.loading.catalogue import cache_folder
from turnwise.rewards.judge.budget import JudgeCounts
from turnwise.rewards.judge.prompts import RETRY_REQUEST, UnreadableVerdict, escape_markers
from turnwise.rewards.judge.settings import JudgeSettings
from turnwise.rewards.per_loop import PerLoop
from turnwise.tools.tool import NeedsServer

MAX_QUOTED_CHARS = 2000
"""Characters of an answer that could not be read which the judge is shown again."""
Verdict = TypeVar("Verdict")


FILE = "answers.jsonl"


def request_key(identity: tuple[str, str], messages: Sequence[Message], temperature: float, max_tokens: int) -> str:
    """Equal for equal requests, in every process."""
    said = [(message.role, message.content) for message in messages]
    text = json.dumps([*identity, said, temperature, max_tokens], ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


class AnswerCache:
    def __init__(self, folder: str) -> None:
        """`folder`: empty for turnwise's own."""
        self._file = (Path(folder).expanduser() if folder else cache_folder() / "judge") / FILE
        self._kept: dict[str, str] = {}
        self._read_to = 0
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise UserError(f"the judge's cache {self._file} cannot be written ({error}): give it a folder") from error

    def get(self, key: str) -> str | None:
        """What others have added since is seen."""
        if key not in self._kept:
            self._read_on()
        return self._kept.get(key)

    def put(self, key: str, text: str) -> None:
        """One whole line at a time; behind a line that a dying process left unfinished a new one begins."""
        line = json.dumps({"key": key, "text": text}) + "\n"
        with self._file.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.seek(0, os.SEEK_END)
            torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
            file.write(("\n" * torn + line).encode("ascii"))
        self._kept[key] = text

    def _read_on(self) -> None:
        with self._file.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._read_to:
                self._read_to = 0
            file.seek(self._read_to)
            whole = file.read().rpartition(b"\n")
        self._read_to += len(whole[0]) + len(whole[1])
        for line in whole[0].split(b"\n"):
            self._keep(line)

    def _keep(self, line: bytes) -> None:
        """A line that cannot be read is passed over: what it held is asked for again."""
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(row, dict) and isinstance(row.get("key"), str) and isinstance(row.get("text"), str):
            self._kept.setdefault(row["key"], row["text"])


CHARS_PER_TOKEN = 2
"""Where nobody counts them: few, so that a budget holds in languages of short tokens too."""

TEMPLATE_TOKENS = 16
"""Tokens that a chat template adds to a message, about."""


class JudgeModel(Protocol):
    @property
    def identity(self) -> tuple[str, str]:
        """Where the model is, and which it is: what an answer that is kept belongs to."""
        ...

    async def __call__(self, messages: Sequence[Message]) -> str:
        """What the model says; its cost is counted where it is caused. Raises UserError or InfrastructureFailure."""
        ...


def estimate_tokens(messages: Sequence[Message]) -> int:
    return sum(TEMPLATE_TOKENS + math.ceil(len(message.content.encode()) / CHARS_PER_TOKEN) for message in messages)


class JudgeClient:
    def __init__(self, settings: JudgeSettings, complete: JudgeModel, cache: AnswerCache, counts: JudgeCounts) -> None:
        self.counts = counts
        self._settings, self._complete, self._cache = settings, complete, cache
        self._gate = PerLoop(lambda: asyncio.Semaphore(settings.concurrency))
        self._under_way: PerLoop[dict[str, asyncio.Task[str]]] = PerLoop(dict)

    async def ask(self, messages: Sequence[Message], read: Callable[[str], Verdict]) -> Verdict:
        """`read` gives the verdict of an answer, or raises Unreadable."""
        settings = self._settings
        key = request_key(self._complete.identity, messages, settings.temperature, settings.max_tokens)
        kept = self._cache.get(key)
        if kept is not None:
            try:
                verdict = read(kept)
                self.counts.cached += 1
                return verdict
            except UnreadableVerdict:  # somebody changed the file: it is asked for again
                pass
        return read(await self._shared(key, messages, read))

    async def check_server(self) -> None:
        """A judge that is loaded here asks nobody."""
        if isinstance(self._complete, NeedsServer):
            await self._complete.check_server()

    async def _shared(self, key: str, messages: Sequence[Message], read: Callable[[str], Any]) -> str:
        under_way = self._under_way.get()
        task = under_way.get(key)
        if task is None:
            task = under_way[key] = asyncio.create_task(self._asked(key, messages, read))
            task.add_done_callback(lambda done: _forget(under_way, key, done))
        else:
            self.counts.cached += 1
        return await asyncio.shield(task)  # another may be waiting for it, and it is paid for

    async def _asked(self, key: str, messages: Sequence[Message], read: Callable[[str], Any]) -> str:
        """A readable answer, kept under its first request however often it took."""
        talk, problem = list(messages), ""
        for _ in range(self._settings.asks):
            said = await self._said(talk)
            try:
                read(said)
            except UnreadableVerdict as unreadable:
                self.counts.unreadable += 1
                problem = str(unreadable)
                before = escape_markers(said[:MAX_QUOTED_CHARS]).strip() or "(nothing)"
                talk = [*messages, assistant(before), user(f"That cannot be read: {problem}. {RETRY_REQUEST}")]
            else:
                self._cache.put(key, said)
                return said
        asks = self._settings.asks
        raise InfrastructureFailure(f"the judge {self._settings.model} gave no verdict, {asks} times: {problem}")

    async def _said(self, messages: Sequence[Message]) -> str:
        async with self._gate.get():
            began = time.monotonic()
            try:
                return await self._complete(messages)
            finally:
                self.counts.seconds += time.monotonic() - began


def _forget(under_way: dict[str, asyncio.Task[str]], key: str, done: asyncio.Task[str]) -> None:
    """A failure that nobody waits for any more is nobody's."""
    under_way.pop(key, None)
    if not done.cancelled():
        done.exception()
