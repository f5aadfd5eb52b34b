"""The routes of tasks by split, which OpenEnv shares with OpenReward: tasks that are held out stay so over the wire."""

from collections.abc import Mapping
from typing import Any

from turnwise.core.task import Split
from turnwise.service.openenv.served_env import ServedEnv
from turnwise.service.openenv.wire import Strict, invalid, validate

MAX_LISTED = 10_000
"""Tasks in one answer."""


class SplitRequest(Strict):
    split: Split


class TaskRequest(Strict):
    split: Split
    index: int


class RangeRequest(Strict):
    split: Split
    start: int | None = None
    stop: int | None = None


class TaskRoutes:
    """Answers of the routes. A task is `reset`'s arguments of it."""

    def __init__(self, served: ServedEnv) -> None:
        self._served = served

    def list_splits(self) -> list[dict[str, str]]:
        return [{"name": split, "type": split} for split, size in self._served.sizes.items() if size]

    def answer(self, route: str, body: Any) -> dict[str, Any]:
        """Return the answer of POST /{env}/{route}. Raises ProtocolError, or KeyError for an unknown route."""
        return {
            "tasks": self._list,
            "num_tasks": self._count,
            "task": self._get,
            "task_range": self._list_range,
        }[route](body)

    def _count(self, body: Any) -> dict[str, Any]:
        return {"num_tasks": self._served.sizes[validate(SplitRequest, body).split]}

    def _list(self, body: Any) -> dict[str, Any]:
        split = validate(SplitRequest, body).split
        return {"tasks": self._tasks(split, 0, self._served.sizes[split]), "env_name": self._served.spec.name}

    def _get(self, body: Any) -> dict[str, Any]:
        request = validate(TaskRequest, body)
        if not 0 <= request.index < self._served.sizes[request.split]:
            raise invalid("index", "Invalid task index")
        return {"task": task_json(request.split, request.index)}

    def _list_range(self, body: Any) -> dict[str, Any]:
        request = validate(RangeRequest, body)
        start, stop, _ = slice(request.start, request.stop).indices(self._served.sizes[request.split])
        return {"tasks": self._tasks(request.split, start, stop)}

    def _tasks(self, split: Split, start: int, stop: int) -> list[Mapping[str, Any]]:
        if stop - start > MAX_LISTED:
            raise invalid("split", f"{split} has {stop - start} tasks: list at most {MAX_LISTED} with task_range")
        return [task_json(split, index) for index in range(start, stop)]


def task_json(split: Split, index: int) -> dict[str, Any]:
    return {"split": split, "index": index}
