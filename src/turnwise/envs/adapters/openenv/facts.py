"""Facts of an environment that an OpenEnv server gives over HTTP, asked once per process and checked."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args
from urllib.parse import quote

import httpx2

from turnwise.core.errors import UserError
from turnwise.core.task import Split
from turnwise.envs.param_setting import param_setting
from turnwise.text.truncation import first_line, shorten

MAX_BYTES = 4 << 20
"""Size of the longest answer."""
TIMEOUT_S = 20.0
"""Time for one answer, however slowly it arrives."""
MAX_DESCRIPTION = 4_000
HELD_OUT: dict[Split, int] = {"validation": 9, "test": 8}
"""Remainder of the index modulo 10 of the training tasks that stand in for a split that the server lacks."""
SHARE = 10
MAJOR_VERSION = 1
"""Latest version of OpenEnv's HTTP interface that turnwise speaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSet:
    """Tasks of one of our splits: those of a split of the server, or every tenth of it."""

    split: str
    count: int
    """Tasks of the server's split."""
    residues: tuple[int, ...] = ()
    """Remainders modulo 10 of the indices that belong to our split; empty: all."""

    @property
    def size(self) -> int:
        if not self.residues:
            return self.count
        full, rest = divmod(self.count, SHARE)
        return full * len(self.residues) + sum(residue < rest for residue in self.residues)

    def index(self, number: int) -> int:
        """Return the server's index of our task `number`."""
        if not self.residues:
            return number
        block, position = divmod(number, len(self.residues))
        return SHARE * block + self.residues[position]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Schemas and description of the environment, and its tasks if it has a fixed number."""

    name: str
    description: str
    action: Mapping[str, Any]
    """JSON schema of an action."""
    tasks: Mapping[Split, TaskSet] = field(default_factory=dict)


def ask_server(url: str, token: str | None, splits: Mapping[str, str]) -> ServerFacts:
    """Ask a server. Raises UserError in one line if it is not there, not an OpenEnv server, or has no such splits."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with httpx2.Client(base_url=url, headers=headers, timeout=TIMEOUT_S) as http:
        schema = _get(http, "/schema", url)
        action = schema.get("action") if isinstance(schema, dict) else None
        if not isinstance(action, dict):
            raise UserError(f"{url}/schema has no schema of actions: is it an OpenEnv server?")
        _check_version(_get(http, "/openapi.json", url, optional=True), url)
        metadata = _get(http, "/metadata", url, optional=True)
        about = metadata if isinstance(metadata, dict) else {}
        description = about.get("description")
        return ServerFacts(
            name=str(about.get("name", "")),
            description=shorten(description, MAX_DESCRIPTION) if isinstance(description, str) else "",
            action=action,
            tasks=_find_tasks(http, url, splits),
        )


def _check_version(api: Any, url: str) -> None:
    """Raise UserError for a later version of the interface. A server that names none is taken for the first."""
    info = api.get("info") if isinstance(api, dict) else None
    version = str(info.get("version", "")) if isinstance(info, dict) else ""
    major = version.partition(".")[0]
    if major.isdecimal() and int(major) > MAJOR_VERSION:
        raise UserError(
            f"{url} has version {first_line(version, 40)} of OpenEnv's interface, and turnwise knows version "
            f"{MAJOR_VERSION}. Install a newer turnwise, or serve with an earlier OpenEnv."
        )


def _get(http: httpx2.Client, path: str, url: str, *, optional: bool = False) -> Any:
    return _request(http, "GET", path, url, optional=optional)


def _request(http: httpx2.Client, method: str, path: str, url: str, *, body: Any = None, optional: bool = False) -> Any:
    """Return the JSON of an answer; None if an optional path does not exist."""
    began = time.monotonic()
    try:
        with http.stream(method, path, json=body) as answer:
            if optional and answer.status_code in (400, 404, 405, 422, 500, 501):
                return None
            if answer.status_code in (401, 403):
                raise UserError(f"{url} rejects the token: name its variable with {param_setting('token_env')}.")
            if answer.status_code != 200:
                raise UserError(f"{url}{path} answers with status {answer.status_code}: is it an OpenEnv server?")
            data = bytearray()
            for chunk in answer.iter_bytes():
                data += chunk
                if len(data) > MAX_BYTES or time.monotonic() - began > TIMEOUT_S:
                    raise UserError(f"{url}{path} answers with more than {MAX_BYTES >> 20} MiB or {TIMEOUT_S:g} s.")
        return json.loads(bytes(data))
    except httpx2.HTTPError as error:
        raise UserError(
            f"{url} cannot be reached: {first_line(error)}. Start the server, or correct the URL."
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{url}{path} does not answer with JSON: is it an OpenEnv server?") from error


def _find_tasks(http: httpx2.Client, url: str, splits: Mapping[str, str]) -> dict[Split, TaskSet]:
    """Return the tasks of our splits; empty if the server has no task routes, so that seeds choose the tasks."""
    names = _get(http, "/list_environments", url, optional=True)
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None
    path = f"/{quote(name or '', safe='')}"
    listed = _get(http, f"{path}/splits", url, optional=True) if name else None
    if not isinstance(listed, list):
        if splits:
            raise UserError(f"{param_setting('splits')}: {url} has no task routes. Remove the setting.")
        return {}
    counts, kinds = dict[str, int](), dict[str, str]()
    for split in listed:
        if isinstance(split, dict) and isinstance(split.get("name"), str):
            counts[split["name"]] = _count(http, f"{path}/num_tasks", url, split["name"])
            kinds.setdefault(str(split.get("type", split["name"])), split["name"])
    return assign_splits(counts, kinds, splits, url)


def _count(http: httpx2.Client, path: str, url: str, split: str) -> int:
    answer = _request(http, "POST", path, url, body={"split": split}, optional=True)
    count = answer.get("num_tasks") if isinstance(answer, dict) else None
    if not isinstance(count, int) or count < 0:
        raise UserError(f'{url}{path} gives no number of tasks of the split "{split}".')
    return count


def assign_splits(
    counts: Mapping[str, int], kinds: Mapping[str, str], chosen: Mapping[str, str], url: str
) -> dict[Split, TaskSet]:
    """Return the server's tasks for each of our splits. No task is in two of them.

    counts: tasks by the server's split; kinds: the server's first split of each type; chosen: ours -> the server's.
    """
    for ours, theirs in chosen.items():
        if ours not in get_args(Split) or theirs not in counts:
            known = ", ".join(counts)
            raise UserError(f'{param_setting("splits")} {ours} = "{theirs}": {url} has the splits {known}.')
    names = {ours: chosen.get(ours, kinds.get(ours, "")) for ours in get_args(Split)}
    taken = [name for name in names.values() if name]
    if len(set(taken)) < len(taken):
        raise UserError(f"{param_setting('splits')}: each split of {url} can be used once.")
    train = names["train"]
    if not counts.get(train):
        raise UserError(
            f"{url} has no training tasks, only the splits {', '.join(counts)}: name one with "
            f"{param_setting('splits')}."
        )
    missing = {ours: residue for ours, residue in HELD_OUT.items() if not counts.get(names[ours])}
    kept = tuple(residue for residue in range(SHARE) if residue not in missing.values()) if missing else ()
    tasks: dict[Split, TaskSet] = {"train": TaskSet(split=train, count=counts[train], residues=kept)}
    for ours in HELD_OUT:
        if ours in missing:
            tasks[ours] = TaskSet(split=train, count=counts[train], residues=(missing[ours],))
        else:
            tasks[ours] = TaskSet(split=names[ours], count=counts[names[ours]])
    return tasks
