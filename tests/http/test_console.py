"""The console over HTTP: its files and their headers, its sessions, and when a cookie counts."""

import re
from pathlib import Path

import pytest

from courser.transports.settings import ConsoleSettings, HttpSettings
from tests.http.serving import HttpClient, HttpReply, HttpServer, serving

CONSOLE = Path(__file__).resolve().parents[2] / "src" / "courser" / "console"
OWN = {"x-courser-console": "1"}
LOGIN = {"username": "iggy", "password": "iggy"}


async def log_in(client: HttpClient) -> str:
    """The cookie of a new session."""
    reply = await client.ask("POST", "/ui/session", LOGIN, headers=OWN)
    assert reply.status == 200, reply
    return reply.headers["set-cookie"].partition(";")[0]


@pytest.fixture
async def cookie(server: HttpServer) -> str:
    return await log_in(server.client)


async def test_the_page_loads_nothing_from_elsewhere_and_runs_nothing_inline(server: HttpServer) -> None:
    page = await server.client.ask("GET", "/ui/")
    policy = page.headers["content-security-policy"]
    assert page.status == 200
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert b"http:" not in page.body
    assert b"https:" not in page.body
    assert re.search(rb"<script(?![^>]*src=)|\son\w+=|style=", page.body) is None


async def test_every_file_is_served_compressed_and_not_sent_twice(server: HttpServer) -> None:
    for path in CONSOLE.iterdir():
        packed = await server.client.ask("GET", f"/ui/{path.name}", headers={"accept-encoding": "gzip"})
        assert packed.status == 200, path.name
        assert packed.headers["content-encoding"] == "gzip"
        plain = await server.client.ask("GET", f"/ui/{path.name}")
        assert path.name == "index.html" or plain.body == path.read_bytes()
        again = await server.client.ask("GET", f"/ui/{path.name}", headers={"if-none-match": plain.headers["etag"]})
        assert (again.status, again.body) == (304, b"")


async def test_what_the_page_names_is_never_asked_for_again(server: HttpServer) -> None:
    page = await server.client.ask("GET", "/ui/")
    assert page.headers["cache-control"] == "no-cache"
    names = re.findall(r'(?:href|src)="([^#"]+)"', page.body.decode())
    assert {name.partition("/")[2] for name in names} > {"early.js", "app.js", "style.css", "icon.svg"}
    for name in names:
        reply = await server.client.ask("GET", f"/ui/{name}")
        assert reply.status == 200
        assert "immutable" in reply.headers["cache-control"]
    # A page of before an update names another version: that must not stay in the cache under its name.
    other = await server.client.ask("GET", "/ui/0123456789abcdef/app.js")
    assert (other.status, other.headers["cache-control"]) == (200, "no-cache")


@pytest.mark.parametrize(
    "name", ["missing.js", "..%2f__init__.py", "%2e%2e", ".hidden.js", "x", "v/missing.js", "v/%2e%2e"]
)
async def test_nothing_else_is_served(server: HttpServer, name: str) -> None:
    assert (await server.client.ask("GET", f"/ui/{name}")).status == 404


async def test_the_address_without_a_slash_leads_to_the_page(server: HttpServer) -> None:
    reply = await server.client.ask("GET", "/ui")
    assert (reply.status, reply.headers["location"]) == (307, "ui/")


async def test_no_script_makes_html_of_texts() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc"
    )
    for path in CONSOLE.glob("*.js"):
        assert forbidden.search(path.read_text()) is None, path.name


# --- sessions ---


async def test_a_session_is_a_cookie_that_scripts_cannot_read(server: HttpServer) -> None:
    reply = await server.client.ask("POST", "/ui/session", LOGIN, headers=OWN)
    facts = reply.headers["set-cookie"].split("; ")
    assert facts[0].startswith(f"courser_session_{server.port}=")
    assert {"Path=/", "HttpOnly", "SameSite=Strict"} < set(facts)
    assert "Secure" not in facts
    assert reply.headers["cache-control"] == "no-store"
    assert reply.json["username"] == "iggy"
    assert facts[0].partition("=")[2].encode() not in reply.body


async def test_behind_a_proxy_with_tls_the_cookie_is_secure(server: HttpServer) -> None:
    reply = await server.client.ask("POST", "/ui/session", LOGIN, headers=OWN | {"x-forwarded-proto": "https"})
    assert "Secure" in reply.headers["set-cookie"].split("; ")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        OWN | {"origin": "http://evil.example"},
        OWN | {"sec-fetch-site": "cross-site"},
        OWN | {"sec-fetch-site": "same-site", "origin": "http://localhost"},
    ],
)
async def test_a_login_of_another_page_is_refused(server: HttpServer, headers: dict[str, str]) -> None:
    reply = await server.client.ask("POST", "/ui/session", LOGIN, headers=headers)
    assert reply.status == 403
    assert "set-cookie" not in reply.headers


async def test_a_wrong_password_is_refused_as_everywhere(server: HttpServer) -> None:
    reply = await server.client.ask("POST", "/ui/session", LOGIN | {"password": "wrong"}, headers=OWN)
    assert (reply.status, reply.json["code"]) == (400, "invalid_credentials")


async def test_after_a_logout_the_cookie_is_worth_nothing(server: HttpServer, cookie: str) -> None:
    headers = OWN | {"cookie": cookie}
    assert (await server.client.ask("GET", "/ui/session", headers=headers)).status == 200
    gone = await server.client.ask("DELETE", "/ui/session", headers=headers)
    assert gone.status == 204
    assert "Expires=Thu, 01 Jan 1970" in gone.headers["set-cookie"]
    assert (await server.client.ask("GET", "/ui/session", headers=headers)).status == 401


async def test_a_one_time_token_logs_in_once(server: HttpServer, root: HttpClient) -> None:
    token = (await root.ask("POST", "/personal-access-tokens/one-time", {})).json["token"]
    first = await server.client.ask("POST", "/ui/session", {"token": token}, headers=OWN)
    second = await server.client.ask("POST", "/ui/session", {"token": token}, headers=OWN)
    assert (first.status, first.json["user_id"]) == (200, 0)
    assert second.status == 401


# --- when a cookie counts ---


@pytest.mark.parametrize(
    ("method", "headers", "is_allowed"),
    [
        ("GET", OWN, True),
        ("GET", OWN | {"sec-fetch-site": "same-origin"}, True),
        ("GET", {"sec-fetch-site": "same-origin"}, True),
        ("GET", {}, False),
        ("GET", {"sec-fetch-site": "none"}, False),
        ("GET", OWN | {"sec-fetch-site": "same-site"}, False),
        ("GET", {"sec-fetch-site": "cross-site"}, False),
        ("POST", OWN, True),
        ("POST", {"sec-fetch-site": "same-origin"}, False),
        ("POST", {}, False),
        ("POST", OWN | {"sec-fetch-site": "cross-site"}, False),
    ],
)
async def test_a_cookie_counts_only_for_requests_of_the_console(
    server: HttpServer, cookie: str, method: str, headers: dict[str, str], is_allowed: bool
) -> None:
    body = {"name": "new"} if method == "POST" else None
    reply = await server.client.ask(method, "/streams", body, headers=headers | {"cookie": cookie})
    assert reply.status == (200 if is_allowed else 403)
    assert bool(server.broker.catalog.state.streams) == (is_allowed and method == "POST")
    if is_allowed:
        assert reply.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("host", "origin", "is_allowed"),
    [
        ("localhost", "http://localhost", True),
        ("localhost:3000", "http://localhost:3000", True),
        ("Console.example", "https://console.example", True),
        ("console.example:443", "https://console.example", True),
        ("console.example", "http://console.example:80", True),
        ("[::1]:3000", "http://[::1]:3000", True),
        ("localhost", "https://evil.example", False),
        ("localhost", "null", False),
        ("", "null", False),
        ("", "file://", False),
        ("localhost", "x", False),
        ("localhost:3000", "http://localhost:3001", False),
        ("localhost:3000", "http://localhost", False),
        ("console.example", "https://evil.console.example", False),
        ("console.example", "https://console.example.evil.example", False),
        ("console.example:443", "http://console.example", False),
    ],
)
async def test_a_cookie_counts_only_for_pages_of_the_same_origin(
    server: HttpServer, cookie: str, host: str, origin: str, is_allowed: bool
) -> None:
    headers = OWN | {"cookie": cookie, "host": host, "origin": origin}
    for method, path, body in (("POST", "/streams", {"name": "new"}), ("GET", "/streams", None)):
        reply = await server.client.ask(method, path, body, headers=headers)
        assert reply.status == (200 if is_allowed else 403)
    assert bool(server.broker.catalog.state.streams) == is_allowed
    # Behind a proxy that changes the host, the browser's own word counts: pages cannot set this header.
    own = await server.client.ask("GET", "/streams", headers=headers | {"sec-fetch-site": "same-origin"})
    assert own.status == 200
    foreign = await server.client.ask("GET", "/streams", headers=headers | {"sec-fetch-site": "cross-site"})
    assert foreign.status == 403


async def test_access_tokens_need_no_header(server: HttpServer, root: HttpClient, cookie: str) -> None:
    reply = await root.ask("POST", "/streams", {"name": "new"}, headers={"cookie": cookie})
    assert reply.status == 200
    assert "cache-control" not in reply.headers


async def test_the_cookie_of_another_server_on_the_machine_is_ignored(server: HttpServer, cookie: str) -> None:
    other = cookie.replace(str(server.port), "1")
    assert (await server.client.ask("GET", "/streams", headers=OWN | {"cookie": other})).status == 401
    both = f"{other}; {cookie}"
    assert (await server.client.ask("GET", "/streams", headers=OWN | {"cookie": both})).status == 200


# --- settings ---


async def ask_all(client: HttpClient, headers: dict[str, str]) -> tuple[HttpReply, HttpReply, HttpReply]:
    return (
        await client.ask("GET", "/streams", headers=headers),
        await client.ask("POST", "/streams", {"name": "new"}, headers=headers),
        await client.ask("GET", "/streams/s/topics/t/messages?auto_commit=true", headers=headers),
    )


async def test_a_read_only_console_changes_nothing_and_tokens_still_do(tmp_path: Path) -> None:
    settings = HttpSettings(port=0, console=ConsoleSettings(is_read_only=True))
    async with serving(tmp_path / "data", settings) as server:
        headers = OWN | {"cookie": await log_in(server.client)}
        read, changed, committed = await ask_all(server.client, headers)
        assert (read.status, changed.status, committed.status) == (200, 403, 403)
        assert b"ui.read_only" in changed.body
        assert (await server.client.ask("GET", "/ui/session", headers=headers)).json["read_only"]
        assert (await server.root.ask("POST", "/streams", {"name": "new"})).status == 200
        assert (await server.client.ask("DELETE", "/ui/session", headers=headers)).status == 204


async def test_a_server_without_a_console_has_no_page_and_no_cookies(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", HttpSettings(port=0, console=None)) as server:
        assert (await server.client.ask("GET", "/ui/")).status == 401
        assert (await server.root.ask("GET", "/ui/")).status == 404
        document = (await server.client.ask("GET", "/openapi.json")).json
        assert not any(path.startswith("/ui") for path in document["paths"])


async def test_a_path_that_a_proxy_puts_before_is_understood(tmp_path: Path) -> None:
    settings = HttpSettings(port=0, console=ConsoleSettings(base_path="/courser"))
    async with serving(tmp_path / "data", settings) as server:
        reply = await server.client.ask("POST", "/courser/ui/session", LOGIN, headers=OWN)
        assert "Path=/courser" in reply.headers["set-cookie"].split("; ")
        headers = OWN | {"cookie": reply.headers["set-cookie"].partition(";")[0]}
        for path in ("/courser/streams", "/streams"):
            assert (await server.client.ask("GET", path, headers=headers)).status == 200
        assert (await server.client.ask("GET", "/courser/ui/")).status == 200
