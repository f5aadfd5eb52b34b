"""SQLite file of sessions, models, samplers and requests: what a restarted server continues from.

A request is stored before its promise is sent, and its result before it can be retrieved. After kill -9 the requests of
a model since its last saved state run again, in their order, so its weights are those of an undisturbed server.
"""

import hashlib
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (id TEXT PRIMARY KEY, owner TEXT NOT NULL, finished INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS models (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, spec TEXT NOT NULL, saved_seq INTEGER NOT NULL DEFAULT -1,
    saved_steps INTEGER NOT NULL DEFAULT 0, unloaded INTEGER NOT NULL DEFAULT 0,
    metadata TEXT NOT NULL DEFAULT '{}'
);
CREATE TABLE IF NOT EXISTS samplers (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, path TEXT, clones INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS requests (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, parent TEXT NOT NULL, seq INTEGER NOT NULL, kind TEXT NOT NULL,
    body BLOB, digest BLOB NOT NULL, result BLOB, result_kind TEXT, retrieved REAL
);
CREATE INDEX IF NOT EXISTS requests_of_parent ON requests (parent, seq);
"""

ResultKind = Literal["json", "proto", "error", "crash"]
"""An error is the request's own, and happens again if it is repeated; a crash is the server's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    kind: ResultKind
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRequest:
    id: str
    owner: str
    parent: str
    """Id of the model or sampler that it is for."""
    seq: int
    kind: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    id: str
    owner: str
    spec: str
    """JSON of what it was created from."""
    saved_seq: int
    """Last request in the saved state; -1 if none is saved."""
    saved_steps: int
    """Optimizer steps in the saved state."""
    unloaded: bool
    metadata: str
    """JSON that the client gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSampler:
    id: str
    owner: str
    path: str | None
    """Path of its weights; None: the base model."""


class RequestStore:
    """Thread-safe. Writes survive kill -9 of the process, since the operating system has them."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.executescript(SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def _cursor(self) -> Iterator[sqlite3.Cursor]:
        with self._lock:
            cursor = self._connection.cursor()
            try:
                yield cursor
            finally:
                cursor.close()

    def _execute(self, statement: str, *values: Any) -> None:
        with self._cursor() as cursor:
            cursor.execute(statement, values)

    def _select(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._cursor() as cursor:
            return cursor.execute(statement, values).fetchall()

    def add_session(self, session: str, owner: str) -> None:
        self._execute("INSERT INTO sessions (id, owner) VALUES (?, ?)", session, owner)

    def finish_session(self, session: str) -> None:
        self._execute("UPDATE sessions SET finished = 1 WHERE id = ?", session)

    def session_state(self, session: str, owner: str) -> Literal["open", "finished"] | None:
        """Return None for a session that the owner does not have."""
        rows = self._select("SELECT finished FROM sessions WHERE id = ? AND owner = ?", session, owner)
        return None if not rows else "finished" if rows[0][0] else "open"

    def add_model(self, model: str, owner: str, spec: str, metadata: str = "{}") -> None:
        """Add a model; `metadata`: JSON of the client."""
        statement = "INSERT OR IGNORE INTO models (id, owner, spec, metadata) VALUES (?, ?, ?, ?)"
        self._execute(statement, model, owner, spec, metadata)

    def model(self, model: str, owner: str | None = None) -> StoredModel | None:
        """Return a model. With an owner, only one of theirs."""
        columns = "id, owner, spec, saved_seq, saved_steps, unloaded, metadata"
        rows = self._select(f"SELECT {columns} FROM models WHERE id = ?", model)
        if not rows or owner not in (None, rows[0][1]):
            return None
        identity, owned_by, spec, saved_seq, saved_steps, unloaded, metadata = rows[0]
        return StoredModel(
            id=identity,
            owner=owned_by,
            spec=spec,
            saved_seq=saved_seq,
            saved_steps=saved_steps,
            unloaded=bool(unloaded),
            metadata=metadata,
        )

    def models_of(self, owner: str) -> list[str]:
        return [row[0] for row in self._select("SELECT id FROM models WHERE owner = ? ORDER BY rowid", owner)]

    def set_saved(self, model: str, seq: int, steps: int) -> None:
        """Note a saved state, and drop the bodies of the requests in it: they will not run again."""
        with self._cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("UPDATE models SET saved_seq = ?, saved_steps = ? WHERE id = ?", (seq, steps, model))
            cursor.execute("UPDATE requests SET body = NULL WHERE parent = ? AND seq <= ?", (model, seq))
            cursor.execute("COMMIT")

    def unload(self, model: str) -> None:
        self._execute("UPDATE models SET unloaded = 1 WHERE id = ?", model)

    def add_sampler(self, sampler: str, owner: str, path: str | None) -> None:
        self._execute("INSERT OR IGNORE INTO samplers (id, owner, path) VALUES (?, ?, ?)", sampler, owner, path)

    def sampler(self, sampler: str, owner: str) -> StoredSampler | None:
        rows = self._select("SELECT path FROM samplers WHERE id = ? AND owner = ?", sampler, owner)
        return StoredSampler(id=sampler, owner=owner, path=rows[0][0]) if rows else None

    def add_clone(self, sampler: str) -> int:
        """Return the number of a further client of a sampler, counted from 1."""
        with self._cursor() as cursor:
            cursor.execute("UPDATE samplers SET clones = clones + 1 WHERE id = ?", (sampler,))
            number: int = cursor.execute("SELECT clones FROM samplers WHERE id = ?", (sampler,)).fetchone()[0]
            return number

    def accept(self, request: StoredRequest) -> bool:
        """Store a request. Returns False if there is one of this id already."""
        digest = hash_body(request.body)
        row = (request.id, request.owner, request.parent, request.seq, request.kind, request.body, digest)
        columns = "id, owner, parent, seq, kind, body, digest"
        with self._cursor() as cursor:
            cursor.execute(f"INSERT OR IGNORE INTO requests ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            return cursor.rowcount == 1

    def digest(self, request: str, owner: str) -> bytes | None:
        """Return the digest of a request's body; None if the owner has no such request."""
        rows = self._select("SELECT digest FROM requests WHERE id = ? AND owner = ?", request, owner)
        return bytes(rows[0][0]) if rows else None

    def last_seq(self, parent: str) -> int:
        """Return the number of the last request of a model or sampler, 0 before any."""
        last = self._select("SELECT COALESCE(MAX(seq), 0) FROM requests WHERE parent = ?", parent)[0][0]
        saved = self._select("SELECT COALESCE(MAX(saved_seq), 0) FROM models WHERE id = ?", parent)[0][0]
        return max(int(last), int(saved))

    def finish(self, request: str, result: Result) -> None:
        self._execute("UPDATE requests SET result = ?, result_kind = ? WHERE id = ?", result.body, result.kind, request)

    def result(self, request: str) -> Result | None:
        rows = self._select("SELECT result_kind, result FROM requests WHERE id = ?", request)
        return Result(kind=rows[0][0], body=bytes(rows[0][1])) if rows and rows[0][0] is not None else None

    def set_retrieved(self, request: str, time: float) -> None:
        self._execute("UPDATE requests SET retrieved = ? WHERE id = ?", time, request)

    def drop_retrieved(self, before: float) -> None:
        """Delete requests whose results were retrieved before this time, and that will not run again."""
        self._execute("DELETE FROM requests WHERE retrieved < ? AND (kind = 'sample' OR body IS NULL)", before)

    def unfinished(self) -> list[StoredRequest]:
        """Return the requests without a result, in the order in which they were accepted."""
        return self._requests("result_kind IS NULL ORDER BY rowid")

    def to_replay(self, model: str, after: int) -> list[StoredRequest]:
        """Return the requests of a model since its saved state that the server did not crash at, in their order."""
        done = "result_kind IS NOT NULL AND result_kind != 'crash'"
        return self._requests(f"parent = ? AND seq > ? AND {done} ORDER BY seq", model, after)

    def _requests(self, condition: str, *values: Any) -> list[StoredRequest]:
        rows = self._select(f"SELECT id, owner, parent, seq, kind, body FROM requests WHERE {condition}", *values)
        return [
            StoredRequest(id=row[0], owner=row[1], parent=row[2], seq=row[3], kind=row[4], body=bytes(row[5] or b""))
            for row in rows
        ]


def hash_body(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()
