"""Host names, tokens and security headers of the viewer's server."""

from pathlib import Path

import pytest
from server_for_tests import client, make_run

from turnwise.core.errors import UserError
from turnwise.network.http_headers import host_name
from turnwise.network.ports import listen
from turnwise.viewer.access import AccessPolicy
from turnwise.viewer.server import page_address, resolve_token

TOKEN = "correct-horse-battery"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_run(tmp_path / "a")
    return tmp_path


@pytest.mark.parametrize("host", ["localhost", "localhost:7860", "127.0.0.1:9", "[::1]:7860", "LOCALHOST:1"])
def test_loopback_names_are_allowed_at_any_port(folder: Path, host: str) -> None:
    """A forwarded port differs from the server's own."""
    assert client(folder).get("/api/runs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil@localhost",
        "localhost:evil",
        "",
        "[::1",
    ],
)
def test_other_host_names_are_refused(folder: Path, host: str) -> None:
    """DNS rebinding: a foreign page whose name resolves to this machine."""
    for path in ("/api/runs", "/", "/static/index.html"):
        response = client(folder).get(path, headers={"Host": host})
        assert response.status_code == 403
        assert "a" not in response.json().get("runs", [])


def test_two_host_headers_are_refused(folder: Path) -> None:
    response = client(folder).get("/api/runs", headers=[("Host", "localhost"), ("Host", "localhost")])
    assert response.status_code == 403


def test_host_option_is_an_allowed_name(folder: Path) -> None:
    browser = client(folder, host="box.lan")
    assert browser.get("/api/runs", headers={"Host": "box.lan:7860"}).status_code == 200
    assert browser.get("/api/runs", headers={"Host": "other.lan:7860"}).status_code == 403


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_api_serves_only_its_own_page(folder: Path, site: str, status: int) -> None:
    assert client(folder).get("/api/runs", headers={"Sec-Fetch-Site": site}).status_code == status


@pytest.mark.parametrize("path", ["/", "/static/index.html", "/api/runs", "/api/nothing"])
def test_every_response_has_security_headers(folder: Path, path: str) -> None:
    for response in (client(folder).get(path), client(folder, token=TOKEN).get(path)):
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'; img-src 'self' data:")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert response.headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong-token"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Bearer "},
        {"Cookie": "turnwise-7860=wrong"},
        {"Cookie": f"turnwise-1={TOKEN}"},
        {"Cookie": "\xff=;;;turnwise-7860"},
    ],
)
def test_requests_without_the_token_are_refused(folder: Path, headers: dict[str, str]) -> None:
    browser = client(folder, token=TOKEN)
    for path in ("/", "/static/index.html", "/api/runs", "/api/config?run=a", "/api/runs?token=wrong", "/?token="):
        response = browser.get(path, headers={name: value.encode("latin-1") for name, value in headers.items()})
        assert response.status_code == 401
        assert list(response.json()) == ["error"]


def test_token_is_accepted_as_bearer_and_in_the_address(folder: Path) -> None:
    browser = client(folder, token=TOKEN)
    assert browser.get("/api/runs", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert browser.get("/api/runs").status_code == 401
    redirect = browser.get(f"/?token={TOKEN}&x=1%262")
    assert (redirect.status_code, redirect.headers["location"]) == (303, "/?x=1%262")
    cookie = redirect.headers["set-cookie"].lower()
    assert cookie.startswith("turnwise-7860=")
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert browser.get("/api/runs").status_code == 200


def test_token_redirect_stays_on_this_server(folder: Path) -> None:
    response = client(folder, token=TOKEN).get(f"http://localhost:7860//evil.example/?token={TOKEN}")
    assert response.headers["location"] == "/evil.example/"


def test_token_is_required_on_reachable_addresses() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.3.2.1"):
        assert resolve_token(host, None) is None
    for host in ("0.0.0.0", "::", "192.168.0.7", "box.lan"):
        created = resolve_token(host, None)
        assert created is not None
        assert len(created) >= 20
        assert created != resolve_token(host, None)
    assert resolve_token("127.0.0.1", TOKEN) == TOKEN


@pytest.mark.parametrize("token", ["", "short", "with space in it", "with;semicolon", "ünïcödé-tokens"])
def test_token_with_unsafe_characters_is_refused(token: str) -> None:
    with pytest.raises(UserError, match="token must"):
        resolve_token("127.0.0.1", token)


def test_page_address_contains_port_and_token() -> None:
    assert page_address(AccessPolicy(port=7)) == "http://127.0.0.1:7/"
    assert page_address(AccessPolicy(host="::1", port=7, token=TOKEN)) == f"http://[::1]:7/?token={TOKEN}"
    assert "0.0.0.0" not in page_address(AccessPolicy(host="0.0.0.0", token=TOKEN))


def test_port_in_use_error_suggests_another() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"Port {port} is in use.*e.g. {port + 1}"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize(("host", "port"), [("no.such.host.invalid", 0), ("127.0.0.1", 70000), ("192.0.2.1", 0)])
def test_listen_refuses_wrong_addresses(host: str, port: int) -> None:
    with pytest.raises(UserError, match="give "):
        listen(host, port)


def test_host_name_drops_the_port() -> None:
    assert [host_name(each) for each in ("a:1", "a", "[::1]:2", "[::1]", "A.:3")] == ["a", "a", "::1", "::1", "a"]
