"""What HTTP serves besides commands: CORS, TLS, request ids, metrics, health."""

import re
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from courser.broker.partition.disk_watch import problems
from courser.errors import CommandRejected, ErrorCode
from courser.model.metrics import Family, Histogram, Metric, MetricKind, Sample
from courser.server.certificates import make_self_signed
from courser.transports.settings import CorsSettings, HttpSettings
from courser.wire.prometheus import encode_families
from courser.wire.rest_replies import size_text
from courser.wire.rest_routes import RouteTable
from tests.http.serving import FIRST, HttpClient, HttpServer, message, serving

ORIGIN = {"origin": "https://shop.example"}


# --- CORS ---


async def test_every_page_may_use_the_server_unless_told_otherwise(server: HttpServer) -> None:
    reply = await server.client.ask("GET", "/ping", headers=ORIGIN)
    assert reply.headers["access-control-allow-origin"] == "*"
    assert "origin" in reply.headers["vary"]
    reply = await server.client.ask("OPTIONS", "/streams", headers=ORIGIN)
    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["access-control-allow-methods"] == "GET,POST,PUT,DELETE"
    assert reply.headers["access-control-allow-headers"] == "content-type,authorization"


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("https://shop.example", True),
        ("https://other.example", False),
        ("https://shop.example.evil.example", False),
        ("http://shop.example", False),
        ("null", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("allows_credentials", [False, True])
async def test_only_some_pages(tmp_path: Path, origin: str, allowed: bool, allows_credentials: bool) -> None:
    cors = CorsSettings(origins=("https://shop.example",), allows_credentials=allows_credentials)
    settings = HttpSettings(port=0, cors=cors)
    async with serving(tmp_path, settings) as server:
        headers = (await server.client.ask("GET", "/ping", headers={"origin": origin})).headers
        assert headers.get("access-control-allow-origin") == (origin if allowed else None)


async def test_without_cors_there_are_no_headers(tmp_path: Path) -> None:
    async with serving(tmp_path, HttpSettings(port=0, cors=None)) as server:
        assert not [name for name in (await server.client.ask("GET", "/ping", headers=ORIGIN)).headers if "acc" in name]


# --- TLS ---


async def test_tls(tmp_path: Path) -> None:
    key, certificate = make_self_signed("127.0.0.1", datetime.now(UTC))
    (tmp_path / "both.pem").write_bytes(key + certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "both.pem")
    trusting = ssl.create_default_context(cadata=certificate.decode())
    async with serving(tmp_path / "data", tls=context) as server:
        root = await HttpClient(server.port, tls=trusting).login()
        assert (await root.ask("GET", "/streams")).json == []
        with pytest.raises((ConnectionError, EOFError)):
            await HttpClient(server.port).ask("GET", "/ping")


# --- request ids ---


async def test_a_reply_and_the_log_have_the_id_of_the_request(
    root: HttpClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "courser.handlers.audit")
    reply = await root.ask("POST", "/streams", {"name": "s"}, headers={"x-request-id": "shop-17.a_b"})
    assert (reply.status, reply.headers["x-request-id"]) == (200, "shop-17.a_b")
    assert "CreateStream user=0" in caplog.text
    assert " request=shop-17.a_b result=done" in caplog.text


async def test_the_log_of_a_failure_has_the_id_too(root: HttpClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "courser.transports.http_application")
    reply = await root.ask("GET", "/streams/missing", headers={"x-request-id": "shop-18"})
    assert (reply.status, reply.headers["x-request-id"]) == (404, "shop-18")
    assert "GetStream over HTTP failed request=shop-18 reason=" in caplog.text


@pytest.mark.parametrize("sent", ["", "a b", "x" * 65, "a=1\tresult=done", "\u00e9"])
async def test_an_id_that_does_not_do_is_replaced(server: HttpServer, sent: str) -> None:
    replies = [await server.client.ask("GET", "/ping", headers={"x-request-id": sent}) for _ in range(2)]
    first, second = (reply.headers["x-request-id"] for reply in replies)
    assert first != second
    assert re.fullmatch("[0-9a-f]{32}", first)


async def test_refusals_have_an_id_too(server: HttpServer) -> None:
    assert (await server.client.ask("GET", "/streams")).headers["x-request-id"]


# --- metrics and health ---


async def test_metrics_need_no_token(server: HttpServer) -> None:
    text = (await server.client.ask("GET", "/metrics")).body.decode()
    assert "# TYPE courser_http_requests_total counter\ncourser_http_requests_total 1\n" in text
    assert text.count("# TYPE") == text.count("# HELP") > 10


async def test_metrics_can_be_elsewhere_or_nowhere(tmp_path: Path) -> None:
    async with serving(tmp_path / "one", HttpSettings(port=0, metrics_path="/figures")) as server:
        assert (await server.client.ask("GET", "/figures")).status == 200
    async with serving(tmp_path / "two", HttpSettings(port=0, metrics_path=None)) as server:
        assert (await server.client.ask("GET", "/metrics")).status == 401


def test_the_text_format_of_prometheus() -> None:
    histogram = Histogram((0.5, 1.0))
    for value in (0.1, 0.7, 3.0):
        histogram.observe(value)
    metric = Metric("courser_x_seconds", MetricKind.HISTOGRAM, "One\nline.", ("a",))
    family = Family(metric, iter([Sample(metric.labeled('q"\\'), histogram)]))
    assert "".join(encode_families([family])) == (
        "# HELP courser_x_seconds One\\nline.\n"
        "# TYPE courser_x_seconds histogram\n"
        'courser_x_seconds_bucket{a="q\\"\\\\",le="0.5"} 1\n'
        'courser_x_seconds_bucket{a="q\\"\\\\",le="1.0"} 2\n'
        'courser_x_seconds_bucket{a="q\\"\\\\",le="+Inf"} 3\n'
        'courser_x_seconds_sum{a="q\\"\\\\"} 3.8\n'
        'courser_x_seconds_count{a="q\\"\\\\"} 3\n'
    )


async def test_a_healthy_server_is_live_and_ready(server: HttpServer) -> None:
    for path in ("/health/live", "/health/ready"):
        assert (await server.client.ask("GET", path)).status == 200


async def test_a_read_only_partition_is_not_ready(server: HttpServer, topic: str) -> None:
    del topic
    (partition, _) = next(iter(server.broker.partitions)).partitions
    partition.log.failure = "a sync failed"
    reply = await server.client.ask("GET", "/health/ready")
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert b"is read-only: a sync failed" in reply.body
    assert (await server.client.ask("GET", "/health/live")).status == 200
    partition.log.failure = None


async def test_who_sends_to_a_read_only_partition_is_told_to_come_again(
    server: HttpServer, root: HttpClient, topic: str
) -> None:
    (partition, _) = next(iter(server.broker.partitions)).partitions
    partition.log.failure = "a sync failed"
    reply = await root.ask("POST", f"{topic}/messages", {"partitioning": FIRST, "messages": [message()]})
    assert (reply.status, reply.json["code"], reply.headers["retry-after"]) == (503, "partition_read_only", "1")
    partition.log.failure = None


async def test_who_logs_in_among_too_many_is_told_to_come_again(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise CommandRejected(ErrorCode.SERVER_BUSY, "too many logins at once; try again later")

    monkeypatch.setattr(server.broker.authentication, "login", refuse)
    reply = await server.client.ask("POST", "/users/login", {"username": "iggy", "password": "iggy"})
    assert (reply.status, reply.json["code"], reply.headers["retry-after"]) == (429, "server_busy", "1")


def test_a_full_disk_is_not_ready(server: HttpServer) -> None:
    gigabyte = 10**9
    assert problems(server.broker.partitions, gigabyte, 1000 * gigabyte) == []
    assert problems(server.broker.partitions, 1000, 1000 * gigabyte)[0].startswith("the disk is full")


# --- small parts ---


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 KB"),
        (1024, "1 KiB"),
        (10_240, "10 KiB"),
        (1_048_576, "1 MiB"),
        (3_211_776, "3136.5 KiB"),
        (2**30, "1 GiB"),
        (1_000_001, "1000.001 KB"),
        (2**64 - 1, "18446744073709551.615 KB"),
    ],
)
def test_sizes_are_written_without_loss(size: int, text: str) -> None:
    assert size_text(size) == text


def test_a_word_in_a_path_comes_before_a_value() -> None:
    router: RouteTable[str] = RouteTable()
    for path in ("/users/{user}", "/users/logout", "/users/{user}/password"):
        router.add("GET", path, path)
    found = {path: router.find(path.encode()) for path in ("/users/logout", "/users/x", "/users/a%2Fb/password")}
    assert [match.targets["GET"] for match in found.values() if match] == [
        "/users/logout",
        "/users/{user}",
        "/users/{user}/password",
    ]
    match = found["/users/a%2Fb/password"]
    assert match is not None
    assert match.values("GET") == {"user": "a/b"}
    assert router.find(b"/users/") is None
