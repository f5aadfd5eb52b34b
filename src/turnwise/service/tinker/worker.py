"""One thread runs all requests. Models and samplers take turns, so that no tenant waits for all work of another."""

import json
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable

from turnwise.core.errors import UserError
from turnwise.service.tinker.backend import Backend
from turnwise.service.tinker.errors import RequestFailure
from turnwise.service.tinker.store import RequestStore, Result, StoredRequest

MAX_TOGETHER = 256
"""Sample requests of one sampler that run together."""

log = logging.getLogger("turnwise")


class Worker:
    """`on_done` is called in the worker's thread after the result of a request is stored."""

    def __init__(
        self,
        backend: Backend,
        store: RequestStore,
        sampler_path: Callable[[StoredRequest], str | None],
        on_done: Callable[[str], None],
    ) -> None:
        self._backend, self._store, self._sampler_path, self._on_done = backend, store, sampler_path, on_done
        self._queues: OrderedDict[str, deque[StoredRequest]] = OrderedDict()
        """Waiting requests by model or sampler; the first one is next."""
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="tinker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Wait for the running request, and close the backend. Waiting requests stay in the store."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def submit(self, request: StoredRequest) -> None:
        with self._changed:
            self._queues.setdefault(request.parent, deque()).append(request)
            self._changed.notify()

    def _take(self) -> list[StoredRequest]:
        """Wait for requests; return one of a model or some of one sampler. Empty: stop."""
        with self._changed:
            while not self._queues and not self._stopping:
                self._changed.wait()
            if self._stopping:
                return []
            parent, queue = self._queues.popitem(last=False)
            together = MAX_TOGETHER if queue[0].kind == "sample" else 1
            taken = [queue.popleft() for _ in range(min(together, len(queue)))]
            if queue:
                self._queues[parent] = queue  # behind the others
            return taken

    def _work(self) -> None:
        while requests := self._take():
            if requests[0].kind == "sample":
                self._sample(requests)
            else:
                self._run(requests[0])
        self._backend.close()

    def _run(self, request: StoredRequest) -> None:
        try:
            if request.kind == "unload_model":
                self._backend.forget(request.parent)
                self._store.unload(request.parent)
                result = Result(
                    kind="json", body=json.dumps({"type": "unload_model", "model_id": request.parent}).encode()
                )
            else:
                result = self._backend.run(request)
        except RequestFailure as failure:
            result = encode_failure(str(failure))
        except Exception as error:
            self._backend.forget(request.parent)  # it may be half-way: the next request loads it again
            result = self._describe_crash(request, error)
        self._finish(request, result)
        try:
            self._backend.after(request)
        except Exception as error:
            self._backend.forget(request.parent)
            self._describe_crash(request, error)

    def _sample(self, requests: list[StoredRequest]) -> None:
        try:
            results = self._backend.sample(self._sampler_path(requests[0]), requests)
        except Exception as error:
            results = [self._describe_crash(requests[0], error)] * len(requests)
        for request, result in zip(requests, results, strict=True):
            self._finish(request, encode_failure(str(result)) if isinstance(result, RequestFailure) else result)

    def _describe_crash(self, request: StoredRequest, error: Exception) -> Result:
        if isinstance(error, UserError):
            return encode_failure(str(error), crashed=True)
        log.error("A request (%s) failed.", request.kind, exc_info=error)
        return encode_failure(f"The server failed ({type(error).__name__}): its log has the details.", crashed=True)

    def _finish(self, request: StoredRequest, result: Result) -> None:
        self._store.finish(request.id, result)
        self._on_done(request.id)


def encode_failure(message: str, *, crashed: bool = False) -> Result:
    body = {"error": message, "category": "server" if crashed else "user"}
    return Result(kind="crash" if crashed else "error", body=json.dumps(body).encode())
