"""Who may write: the token, Host, Origin, the content type, and the size of a request."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.routing import Mount
from studio_for_tests import ECHO, HOST, TOKEN, Page, make_client, open_studio

from turnwise.studio import access
from turnwise.studio.access import MAX_BODY, WriteGuard, is_own_origin
from turnwise.studio.queue import Queue
from turnwise.viewer.api import make_app

READING = {"GET", "HEAD"}
JOB: dict[str, Any] = {"target": "bandit"}


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    (tmp_path / "runs").mkdir()
    with open_studio(tmp_path / "runs", ECHO) as opened:
        yield opened


@pytest.fixture
def stranger(page: Page) -> TestClient:
    """A client of the same studio, without the token."""
    return make_client(page.queue.folder.parents[1], page.queue)


def writing_routes(page: Page) -> list[str]:
    """Return the paths of all routes that take another method than GET, with numbers filled in."""
    mounts = {route.path: route for route in page.client.app.routes if isinstance(route, Mount)}  # type: ignore[attr-defined]
    guard = mounts["/api/studio"].app
    assert isinstance(guard, WriteGuard)
    routes = guard._app.routes  # type: ignore[attr-defined]
    return [route.path.lstrip("/").replace("{number}", "1") for route in routes if route.methods - READING]


def test_viewer_without_the_studio_has_no_route_that_writes(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    mounts = {route.path for route in app.routes if isinstance(route, Mount)}
    assert mounts == {"/static"}
    assert all(set(getattr(route, "methods", READING)) <= READING for route in app.routes)
    client = TestClient(app, base_url="http://localhost:7860")
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        for path in ("/api/studio/jobs", "/api/runs", "/static/main.js", "/"):
            assert client.request(method, path, json={}).status_code in (404, 405)
    assert client.get("/static/extensions.js").text == "export const EXTENSIONS = [];\n"


def test_all_routes_that_write_are_behind_the_guard(page: Page) -> None:
    outside = [route for route in page.client.app.routes if not isinstance(route, Mount)]  # type: ignore[attr-defined]
    assert all(set(getattr(route, "methods", READING)) <= READING for route in outside)
    assert {"jobs", "check", "jobs/1/stop", "jobs/1/remove"} <= set(writing_routes(page))


def test_writing_needs_the_token(page: Page, stranger: TestClient) -> None:
    origin = {"Origin": f"http://{HOST}"}
    for path in writing_routes(page):
        for headers in ({}, {"Authorization": "Bearer wrong-token-0"}, {"Cookie": "turnwise-7860=wrong-token-0"}):
            response = stranger.post(f"/api/studio/{path}", json=JOB, headers={**origin, **headers})
            assert response.status_code == 401, path
            assert list(response.json()) == ["error"]
    assert stranger.get("/api/studio/jobs").status_code == 401
    assert page.queue.jobs() == []


def test_page_with_the_token_may_write(page: Page) -> None:
    assert page.post("jobs", **JOB)["number"] == 1


def test_program_with_the_token_needs_no_origin(page: Page, stranger: TestClient) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert stranger.post("/api/studio/jobs", json=JOB, headers=bearer).status_code == 200
    foreign = {**bearer, "Origin": "http://evil.example"}
    assert stranger.post("/api/studio/jobs", json=JOB, headers=foreign).status_code == 403
    assert len(page.queue.jobs()) == 1


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://localhost:3000",  # of the same site, so that it is sent the cookie
        "http://localhost",
        "http://localhost:7860.evil.example",
        "http://evil.example:7860",
        "null",
        "file://localhost:7860",
        "http://user@localhost:7860",
        "http://[localhost:7860",
        "",
    ],
)
def test_other_pages_cannot_write(page: Page, origin: str) -> None:
    """CSRF: the browser of the user sends the cookie along."""
    for path in writing_routes(page):
        assert page.try_post(path, JOB, Origin=origin).status_code == 403, path
    assert page.queue.jobs() == []


def test_cookie_alone_cannot_write(page: Page) -> None:
    assert page.client.post("/api/studio/jobs", json=JOB).status_code == 403
    two = [("Origin", f"http://{HOST}"), ("Origin", f"http://{HOST}"), ("Content-Type", "application/json")]
    assert page.client.post("/api/studio/jobs", content="{}", headers=two).status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_requests_of_other_sites_are_refused(page: Page, site: str) -> None:
    assert page.try_post("jobs", JOB, **{"Sec-Fetch-Site": site}).status_code == 403
    assert page.client.get("/api/studio/jobs", headers={"Sec-Fetch-Site": site}).status_code == 403


def test_rebound_host_names_cannot_write(page: Page) -> None:
    """DNS rebinding: the foreign page's own name resolves to this machine, so that its Origin fits its Host."""
    for name in ("evil.example:7860", "localhost.evil.example"):
        assert page.try_post("jobs", JOB, Host=name, Origin=f"http://{name}").status_code == 403
        assert page.client.get("/api/studio/jobs", headers={"Host": name}).status_code == 403
    assert page.queue.jobs() == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_forms_cannot_write(page: Page, kind: str) -> None:
    """What an HTML form can send; JSON needs a preflight request, which nothing here answers."""
    headers = {"Origin": f"http://{HOST}", "Content-Type": kind}
    assert page.client.post("/api/studio/jobs", content='{"target":"bandit"}', headers=headers).status_code == 415
    preflight = page.client.options("/api/studio/jobs", headers={"Origin": "http://evil.example"})
    assert preflight.status_code == 403
    assert "access-control-allow-origin" not in preflight.headers


def test_long_requests_are_refused(page: Page) -> None:
    response = page.try_post("check", {"target": "x" * MAX_BODY})
    assert response.status_code == 413
    assert response.json() == {"error": "The request has more than 1024 kB: send less"}
    assert "at most 1000 characters" in page.error("check", target="x" * 5000)


def test_slow_requests_are_refused(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(request: object) -> bytes:
        raise TimeoutError

    monkeypatch.setattr(access, "read_body", never)
    assert page.try_post("check", JOB).status_code == 408


@pytest.mark.parametrize("body", ["", "{", "[]", '"x"', '{"target": NaN}', '{"target": "\\ud800"}', "[" * 100_000])
def test_requests_that_are_not_objects_get_one_line_of_json(page: Page, body: str) -> None:
    headers = {"Origin": f"http://{HOST}", "Content-Type": "application/json"}
    response = page.client.post("/api/studio/check", content=body, headers=headers)
    assert response.status_code == 400 or "error" in response.json()
    assert "\n" not in response.text


def test_unknown_fields_are_refused(page: Page) -> None:
    assert "Extra inputs" in page.error("jobs", **JOB, shell="rm -rf /")
    assert page.queue.jobs() == []


def test_studio_responses_have_the_security_headers(page: Page) -> None:
    for response in (page.client.get("/api/studio/jobs"), page.try_post("jobs", JOB, Origin="null")):
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
        assert response.headers["cache-control"] == "no-store"


def test_studio_always_needs_a_token(tmp_path: Path) -> None:
    with Queue(tmp_path) as queue, pytest.raises(ValueError, match="token"):
        make_client(tmp_path, queue, token=None)


def test_own_origin_is_that_of_the_host_header() -> None:
    assert is_own_origin("http://localhost:7860", "localhost:7860")
    assert is_own_origin("https://BOX.lan", "box.lan")
    assert not is_own_origin("http://localhost:7860", "")
