"""SQLite file of calls and rewards. A call is committed before it is answered, so kill -9 loses nothing answered."""

import asyncio
import json
import sqlite3
from array import array
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError

SCHEMA = """
CREATE TABLE IF NOT EXISTS calls (
    id TEXT PRIMARY KEY, episode TEXT NOT NULL, number INTEGER NOT NULL, choice INTEGER NOT NULL,
    branch INTEGER NOT NULL, extends INTEGER NOT NULL, conversation BLOB NOT NULL, reply BLOB NOT NULL,
    request BLOB NOT NULL, context_ids BLOB NOT NULL, action_ids BLOB NOT NULL, logprobs BLOB NOT NULL,
    policy_versions BLOB NOT NULL, details TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS calls_of_episode ON calls (episode, number, choice);
CREATE TABLE IF NOT EXISTS rewards (
    episode TEXT NOT NULL, call TEXT NOT NULL, reward REAL NOT NULL, PRIMARY KEY (episode, call)
);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCall:
    """One sampled choice."""

    id: str
    episode: str
    """Address of the episode, in hexadecimal."""
    number: int
    """Number of the request in the episode."""
    choice: int
    branch: int
    """Number of the branch in the episode."""
    extends: bool
    """True: appended to the branch's previous call. False: the context is new."""
    conversation: bytes
    """Digest of the conversation, the reply included."""
    reply: bytes
    """Digest of the reply."""
    request: bytes
    """Digest of the request's dialect and body."""
    context_ids: tuple[int, ...]
    action_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_versions: tuple[int, ...]
    details: Mapping[str, Any]
    """Stop, temperature, the reply's content, thinking and calls, and what the caller asked for."""

    def row(self) -> tuple[Any, ...]:
        return (
            *(self.id, self.episode, self.number, self.choice, self.branch, int(self.extends)),
            *(self.conversation, self.reply, self.request),
            *(array("q", ids).tobytes() for ids in (self.context_ids, self.action_ids)),
            *(array("d", self.logprobs).tobytes(), array("q", self.policy_versions).tobytes()),
            json.dumps(self.details),
        )

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> "StoredCall":
        return cls(
            id=row[0],
            episode=row[1],
            number=row[2],
            choice=row[3],
            branch=row[4],
            extends=bool(row[5]),
            conversation=row[6],
            reply=row[7],
            request=row[8],
            context_ids=tuple(array("q", row[9])),
            action_ids=tuple(array("q", row[10])),
            logprobs=tuple(array("d", row[11])),
            policy_versions=tuple(array("q", row[12])),
            details=json.loads(row[13]),
        )


Statement = tuple[str, tuple[Any, ...]]
ADD_CALL = f"INSERT INTO calls VALUES ({','.join('?' * 14)})"


class CallStore:
    """Calls and rewards of a run. Writes that wait for the disk together are committed together, in a thread."""

    def __init__(self, file: Path | None) -> None:
        """`file`: None keeps everything in memory."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="call-store")
        try:
            self._connection = sqlite3.connect(file or ":memory:", check_same_thread=False, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode = WAL")
            # survives kill -9; a power failure may lose the end
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise UserError(f"Calls cannot be recorded in {file} ({error}). Give another file.") from error
        self._waiting: list[tuple[Sequence[Statement], asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def add_calls(self, calls: Sequence[StoredCall]) -> None:
        """Write the calls; returns once they are committed."""
        await self._write([(ADD_CALL, call.row()) for call in calls])

    async def set_reward(self, episode: str, call: str, reward: float) -> None:
        """Write the reward of a call, or of the episode if `call` is empty. A later one replaces it."""
        await self._write([("INSERT OR REPLACE INTO rewards VALUES (?, ?, ?)", (episode, call, reward))])

    async def clear(self, episode: str) -> None:
        """Delete what an interrupted attempt at the same episode left behind."""
        await self._write([(f"DELETE FROM {table} WHERE episode = ?", (episode,)) for table in ("calls", "rewards")])

    async def calls(self, episode: str) -> list[StoredCall]:
        """Return the calls of an episode in order."""
        query = "SELECT * FROM calls WHERE episode = ? ORDER BY number, choice"
        return [StoredCall.from_row(row) for row in await self._read(query, episode)]

    async def rewards(self, episode: str) -> dict[str, float]:
        """Return the rewards of an episode by call; "" is the episode's own."""
        return dict(await self._read("SELECT call, reward FROM rewards WHERE episode = ?", episode))

    async def _read(self, query: str, episode: str) -> list[Any]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: self._connection.execute(query, (episode,)).fetchall())

    async def _write(self, statements: Sequence[Statement]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((statements, done))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_waiting())
        await done

    async def _write_waiting(self) -> None:
        """Commit what is waiting, until nothing is."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch, self._waiting = self._waiting, []
            statements = [statement for write, _ in batch for statement in write]
            failure: Exception | None = None
            try:
                await loop.run_in_executor(self._thread, self._commit, statements)
            except Exception as error:  # each caller gets it
                failure = error
            for _, done in batch:
                if not done.done():
                    done.set_result(None) if failure is None else done.set_exception(failure)

    def _commit(self, statements: Sequence[Statement]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for statement, values in statements:
                self._connection.execute(statement, values)
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def close(self) -> None:
        """Wait for running writes and close the file."""
        self._thread.shutdown()
        self._connection.close()
