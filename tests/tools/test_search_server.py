"""Search server and its client: equal results, batched requests, limits and keys."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from search_for_tests import Scripted, call_all, make_index

from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.tools.search.index import open_index
from turnwise.tools.search.remote import RemoteIndex, read_key, search_url
from turnwise.tools.search.server import SearchServer
from turnwise.tools.search.tool import SearchTool, make_search_tool
from turnwise.tools.search.types import Searcher, SearchFailed, SearchResult

KEY = "canary-key-of-this-test"


@contextmanager
def serving(searcher: Searcher, **options: Any) -> Iterator[SearchServer]:
    with SearchServer(searcher, **options) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)


def ask(server: SearchServer, body: bytes | str, path: str = "/search", **headers: str) -> tuple[int, Any]:
    place = urlsplit(server.url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=120)
    given = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    connection.request("POST", path, body=body, headers=given)
    answer = connection.getresponse()
    read = json.loads(answer.read())
    connection.close()
    return answer.status, read


def test_remote_index_returns_the_same_results(tmp_path: Path) -> None:
    index = open_index(make_index(tmp_path))
    with serving(index) as server:
        assert server.url.startswith("http://127.0.0.1:")
        remote = RemoteIndex(server.url)
        queries = ["river fish", "owl", "zebra", "\ud800 bread"]
        assert remote.search(queries, 2) == index.search(queries, 2)
        tool = make_search_tool({"url": server.url, "top": 2})
        assert call_all(tool, [{"query": "owl"}])[0].text == "1. Owl: The owl hunts mice at night."


def test_concurrent_searches_share_requests() -> None:
    scripted = Scripted()
    with serving(scripted) as server:
        tool = SearchTool(RemoteIndex(server.url))
        results = call_all(tool, [{"query": f"q{number}", "top": 1} for number in range(300)])
    assert [result.text for result in results] == [f"1. q{number}: 0" for number in range(300)]
    assert sum(map(len, scripted.asked)) == 300 and len(scripted.asked) <= 20


def test_server_checks_key_first_and_hides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Scripted(), key=KEY) as server:
        body = json.dumps({"queries": ["a"], "top": 1})
        assert ask(server, body)[0] == ask(server, body, Authorization="Bearer wrong")[0] == 401
        assert ask(server, body, path="/other")[0] == 401, "who has no key learns nothing else"
        assert ask(server, body, Authorization=f"Bearer {KEY}")[0] == 200
        with pytest.raises(UserError, match="requires a key") as caught:
            RemoteIndex(server.url, "another-key").search(["a"], 1)
        assert "another-key" not in str(caught.value)
        monkeypatch.setenv("TURNWISE_SEARCH_KEY", KEY)
        tool = make_search_tool({"url": server.url, "top": 1})
        assert call_all(tool, [{"query": "a"}])[0].text == "1. a: 0" and KEY not in repr(vars(tool))


def test_key_is_sent_only_locally_or_encrypted_unless_named() -> None:
    keys = {"TURNWISE_SEARCH_KEY": "k1", "OWN": "k2"}
    for url in ("http://127.0.0.1:1", "http://localhost", "https://far"):
        assert read_key(url, None, keys) == "k1"
    assert read_key("http://far", None, keys) is None
    assert read_key("http://far", "OWN", keys) == "k2"
    with pytest.raises(UserError, match="characters that are not allowed in a key"):
        read_key("https://far", None, {"TURNWISE_SEARCH_KEY": "a\nb"})


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("{", 400, "Invalid JSON"),
        ('{"queries": "a"}', 400, "queries"),
        ('{"queries": [1]}', 400, "queries"),
        ('{"queries": ["a"], "top": 0}', 400, "top"),
        ('{"queries": ["a"], "top": 51}', 400, "top"),
        ('{"queries": ["a"], "code": "x"}', 400, "code"),
        (json.dumps({"queries": ["a"] * 1025}), 400, "at most 1024"),
        (json.dumps({"queries": ["a" * 2001]}), 400, "at most 2000"),
        (b"x" * ((4 << 20) + 1), 413, "bytes"),
    ],
)
def test_server_limits_requests(body: bytes | str, status: int, said: str) -> None:
    scripted = Scripted()
    with serving(scripted) as server:
        try:
            got, answer = ask(server, body)
        except (BrokenPipeError, ConnectionResetError):  # it hung up before the whole body came
            assert status == 413
        else:
            assert got == status and said in answer["error"]
    assert scripted.asked == []


def test_server_rejects_foreign_hosts_and_content_types() -> None:
    with serving(Scripted()) as server:
        body = json.dumps({"queries": ["a"]})
        assert ask(server, body, Host="evil.example")[0] == 403
        assert ask(server, body, Content_Type="text/plain")[0] == 415
        assert ask(server, body, path="/")[0] == 404
        assert ask(server, body, Host="localhost:1")[0] == 200


def test_public_server_requires_a_key() -> None:
    for options, said in (
        ({"host": "0.0.0.0"}, "set a key first"),
        ({"host": "0.0.0.0", "key": "short"}, "too short"),
        ({"port": 99999}, "not a port"),
        ({"host": "no.such.host.invalid", "key": KEY}, "not an address of this machine"),
    ):
        with pytest.raises(UserError, match=said):
            SearchServer(Scripted(), **options)  # type: ignore[arg-type]


def test_server_survives_a_failing_search() -> None:
    class Once(Scripted):
        def search(self, queries: Sequence[str], top: int) -> list[list[SearchResult]]:
            if queries == ["bad"]:
                raise RuntimeError("inner secret")
            return super().search(queries, top)

    said: list[str] = []
    with serving(Once(), log=said.append) as server:
        status, answer = ask(server, json.dumps({"queries": ["bad"]}))
        assert (status, answer) == (500, {"error": "the search failed"}) and "inner secret" in said[0]
        assert ask(server, json.dumps({"queries": ["good"]}))[0] == 200
        with pytest.raises(SearchFailed, match="answered 500"):
            RemoteIndex(server.url).search(["bad"], 1)


def test_server_survives_disconnecting_client() -> None:
    with serving(Scripted()) as server:
        place = urlsplit(server.url)
        half = b'POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"q'
        with socket.create_connection((place.hostname, place.port or 0)) as connection:
            connection.sendall(half)
        assert ask(server, json.dumps({"queries": ["a"]}))[0] == 200


class Answers(BaseHTTPRequestHandler):
    """Handler that answers with scripted statuses and bodies."""

    protocol_version = "HTTP/1.1"
    script: list[tuple[int, bytes]]
    met: list[bytes]

    def do_POST(self) -> None:
        self.met.append(self.rfile.read(int(self.headers["Content-Length"])))
        status, body = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given: Any) -> None:
        """Quiet."""


@contextmanager
def answering(*script: tuple[int, bytes]) -> Iterator[tuple[str, list[bytes]]]:
    handler = type("Bound", (Answers,), {"script": list(script), "met": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", handler.met  # type: ignore[attr-defined]
        server.shutdown()


GOOD = (200, b'{"results": [[{"title": "T\\u0000", "text": "x\\u001b", "id": "1", "score": 1.5}]]}')


@pytest.mark.parametrize("fault", [(500, b""), (503, b"busy"), (429, b""), (200, b"<html>"), (200, b'{"results": []}')])
def test_transient_server_errors_are_retried(fault: tuple[int, bytes]) -> None:
    with answering(fault, fault, GOOD) as (url, met):
        (result,) = call_all(SearchTool(RemoteIndex(url)), [{"query": "q", "top": 1}])
    assert len(met) == 3 and result.text == "1. T: x"


def test_persistent_server_failure_is_an_infrastructure_failure() -> None:
    with answering((500, b"")) as (url, met), pytest.raises(InfrastructureFailure, match="answered 500, 4 times"):
        call_all(SearchTool(RemoteIndex(url)), [{"query": "q"}])
    assert len(met) == 4
    with pytest.raises(InfrastructureFailure, match="no answer from the search server"):
        call_all(SearchTool(RemoteIndex(url)), [{"query": "q"}])


def test_refused_search_is_a_user_error() -> None:
    with answering((404, b"no such page\n")) as (url, met):
        with pytest.raises(UserError, match=r"answered 404 \(no such page\): is it a server of turnwise search"):
            call_all(SearchTool(RemoteIndex(url)), [{"query": "q"}])
        assert len(met) == 1


def test_silent_server_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        remote = RemoteIndex(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2)
        with pytest.raises(SearchFailed, match="no answer"):
            remote.search(["q"], 1)


def test_search_url_ends_with_endpoint() -> None:
    assert search_url("http://h:1/") == search_url("http://h:1/search") == "http://h:1/search"
    assert search_url("https://h/base") == "https://h/base/search"


def test_remote_search_works_in_consecutive_event_loops() -> None:
    with serving(Scripted()) as server:
        tool = SearchTool(RemoteIndex(server.url))
        for _ in range(3):
            assert asyncio.run(tool.call({"query": "q", "top": 1})).text == "1. q: 0"


def test_check_server_reports_unusable_server(tmp_path: Path) -> None:
    with serving(open_index(make_index(tmp_path)), key=KEY) as server:
        for key, said in ((KEY, ""), ("another", "requires a key: set TURNWISE_SEARCH_KEY")):
            tool = SearchTool(RemoteIndex(server.url, key))
            if said:
                with pytest.raises(UserError, match=said):
                    asyncio.run(tool.check_server())
            else:
                asyncio.run(tool.check_server())
    with pytest.raises(
        UserError, match=r"no answer from the search server .*: start it with `turnwise search INDEX --serve`"
    ):
        asyncio.run(SearchTool(RemoteIndex(server.url, KEY)).check_server())
    asyncio.run(SearchTool(Scripted()).check_server())
