"""The server as a process, and concurrent requests while runs grow."""

import http.client
import inspect
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi.routing import APIRoute
from server_for_tests import add_episode, ask, client, episode, line, make_run

from turnwise.viewer.api import make_app
from turnwise.viewer.metrics import MetricColumns

START = "from turnwise.cli.view import view_app; view_app()"


@pytest.fixture
def started(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], http.client.HTTPConnection]]:
    """`turnwise view` over a run, and a connection that sends paths unchanged."""
    make_run(tmp_path / "a", [episode()])
    command = [sys.executable, "-c", START, str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = process.stdout.readline()
        address = urlsplit(next(word for word in printed.split() if word.startswith("http://127.0.0.1:")))
        asked = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
        try:
            yield process, asked
        finally:
            asked.close()
            process.kill()


def body(asked: http.client.HTTPConnection, path: str, **headers: str) -> tuple[int, bytes]:
    asked.request("GET", path, headers=headers)
    response = asked.getresponse()
    return response.status, response.read()


def test_view_prints_its_address_and_serves_until_sigint(
    started: tuple[subprocess.Popen[str], http.client.HTTPConnection],
) -> None:
    process, asked = started
    status, answer = body(asked, "/api/runs")
    assert (status, json.loads(answer)["runs"][0]["id"]) == (200, "a")
    for path in (
        "/static/../api.py",
        "/static/%2e%2e/api.py",
        "/static/..%2fapi.py",
        "/../../../etc/passwd",
        "//etc/passwd",
    ):
        status, answer = body(asked, path)
        assert (status, b"make_app" in answer, b"root:" in answer) == (404, False, False)
    assert body(asked, "/api/config?run=%2e%2e%2fa")[0] == 404
    assert body(asked, "/api/runs", Host="evil.example")[0] == 403
    process.send_signal(2)
    assert (*process.communicate(timeout=120), process.returncode) == ("", "", 0)


def test_view_names_the_missing_package() -> None:
    code = "import sys; sys.modules['fastapi'] = None; from turnwise.cli.view import view; view()"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "UserError: The viewer needs fastapi. Run `pip install 'turnwise[view]'`." in found.stderr


def test_handlers_run_in_threads(tmp_path: Path) -> None:
    routes = [route for route in make_app(tmp_path).routes if isinstance(route, APIRoute)]
    assert len(routes) > 8
    assert not [route.path for route in routes if inspect.iscoroutinefunction(route.endpoint)]


def slowly(action: Callable[..., None]) -> Callable[..., None]:
    """Sleep before the action, so that other threads run in between."""

    def slow(*arguments: Any) -> None:
        time.sleep(0.0005)
        action(*arguments)

    return slow


def test_responses_are_consistent_while_a_run_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Concurrent requests while lines are written in pieces: each response is a prefix of what was written."""
    folder = make_run(tmp_path / "a")
    asked, steps = client(tmp_path), 40

    def write() -> None:
        with (folder / "metrics.jsonl").open("ab", buffering=0) as file:
            for step in range(steps):
                text = line({"step": step, "twice": 2.0 * step})
                file.write(text[:9])
                file.write(text[9:])
                add_episode(folder, episode(step))

    def look(number: int) -> int:
        metrics = ask(asked, "metrics", run="a")
        rows = ask(asked, "trajectories", run="a", limit=1000)["rows"]
        seen = metrics["columns"].get("step", [])
        assert seen == list(range(metrics["rows"]))
        assert metrics["columns"].get("twice", []) == [2.0 * step for step in seen]
        assert [row["step"] for row in rows] == list(range(len(rows)))
        assert ask(asked, "runs")["runs"][0]["broken"] == metrics["broken"] == 0
        if rows:
            assert ask(asked, "trajectory", run="a", number=rows[-1]["number"])["row"]["step"] == rows[-1]["step"]
        return len(rows)

    monkeypatch.setattr(MetricColumns, "_add", slowly(MetricColumns._add))
    with ThreadPoolExecutor(4) as pool:
        writing = pool.submit(write)
        list(pool.map(look, range(24)))
        writing.result()
    assert look(0) == steps
