"""A studio over a folder of runs, and a client that asks as its page does."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.testclient import TestClient
from httpx2 import Response

from opened_page_for_tests import OpenedPage
from turnwise.studio.agents import Agents
from turnwise.studio.queue import TURNWISE, Queue
from turnwise.studio.routes import make_routes
from turnwise.studio.server import NAME, STATIC
from turnwise.viewer.access import AccessPolicy
from turnwise.viewer.api import make_app
from turnwise.viewer.extension import Extension
from work_for_tests import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page as BrowserPage

TOKEN = "correct-horse-battery"
HOST = "localhost:7860"
ECHO = (sys.executable, "-c", "import sys; print(sys.argv[1:])")
"""A program in place of turnwise, which prints its arguments."""


class Page:
    """Requests of the studio's page, with its cookie and its Origin."""

    def __init__(self, client: TestClient, queue: Queue) -> None:
        self.client, self.queue = client, queue
        client.get(f"/?token={TOKEN}")

    def get(self, path: str, **query: Any) -> Any:
        return self._read(self.client.get(f"/api/studio/{path}", params=query))

    def post(self, path: str, **body: Any) -> Any:
        return self._read(self.try_post(path, body))

    def try_post(self, path: str, body: Any, **headers: str) -> Response:
        return self.client.post(f"/api/studio/{path}", json=body, headers={"Origin": f"http://{HOST}", **headers})

    def error(self, path: str, **body: Any) -> str:
        """Return the error of a request, which must be one line of JSON."""
        response = self.try_post(path, body)
        assert response.status_code in (400, 404), response.text
        assert list(response.json()) == ["error"]
        text: str = response.json()["error"]
        assert "\n" not in text
        return text

    def wait(self, number: int) -> Any:
        """Wait until a job has ended, and return it."""

        def find() -> Any:
            return next(job for job in self.get("jobs")["jobs"] if job["number"] == number)

        assert wait_until(lambda: find()["status"] not in ("waiting", "running", "stopping"))
        return find()

    def _read(self, response: Response) -> Any:
        assert response.status_code == 200, response.text
        return response.json()


def make_studio_app(folder: Path, queue: Queue, agents: Agents | None = None, **policy: Any) -> FastAPI:
    routes = make_routes(folder, queue, agents or Agents())
    extension = Extension(name=NAME, static=STATIC, routes=routes)
    return make_app(folder, AccessPolicy(**{"token": TOKEN, **policy}), extension)


def make_client(folder: Path, queue: Queue, agents: Agents | None = None, **policy: Any) -> TestClient:
    app = make_studio_app(folder, queue, agents, **policy)
    return TestClient(app, base_url=f"http://{HOST}", follow_redirects=False)


@contextmanager
def open_queue(folder: Path, program: Sequence[str]) -> Iterator[Queue]:
    """Open a queue, and end all of its jobs afterwards."""
    with Queue(folder, program=program) as queue:
        yield queue
        for job in queue.jobs():
            queue.stop(job.number, now=True)
        assert wait_until(lambda: all(job.status.ended for job in queue.jobs()))


@contextmanager
def open_studio(folder: Path, program: Sequence[str] = TURNWISE) -> Iterator[Page]:
    with open_queue(folder, program) as queue, Agents() as agents:
        yield Page(make_client(folder, queue, agents), queue)


class StudioPage(OpenedPage):
    """A page of the studio in a browser."""

    def __init__(self, page: "BrowserPage", address: str, queue: Queue) -> None:
        super().__init__(page, address)
        self.queue = queue


@contextmanager
def open_studio_app(folder: Path) -> Iterator[tuple[Queue, Callable[[int], FastAPI]]]:
    """Yield a queue whose jobs print their arguments, and the application for a port."""
    with open_queue(folder, ECHO) as queue, Agents() as agents:
        yield queue, lambda port: make_studio_app(folder, queue, agents, host="127.0.0.1", port=port)
