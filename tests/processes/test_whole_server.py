"""What concerns the server as a whole, with several processes: publishes, metrics, HTTP, TLS, SDKs."""

import asyncio
import json
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from courser.client.client import Client, connect
from courser.client.messages import PollingStrategy
from courser.processes.router import STREAK_COUNT
from tests.otlp_receiver import Receiver
from tests.sdk.conversations import Conversation
from tests.servers import RunningServer

PROCESS_COUNT = 4
PATIENCE = 120.0


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {"server.processes": PROCESS_COUNT, "http.enabled": "true", "http.address": "127.0.0.1:0"}
    with RunningServer(tmp_path_factory.mktemp("processes"), settings=settings) as server:
        yield server


def url(server: RunningServer) -> str:
    return f"iggy://iggy:iggy@{server.address}"


async def make_topics(client: Client, stream: str, count: int = PROCESS_COUNT) -> list[str]:
    await client.create_stream(stream)
    topics = [f"{stream}/topic-{number}" for number in range(count)]
    for topic in topics:
        await client.create_topic(topic, partitions_count=2)
    return topics


async def read(client: Client, topic: str, partition_id: int = 0) -> list[str]:
    polled = await client.poll_messages(topic, None, partition_id, PollingStrategy.First(), 1000)
    return [message.text() for message in polled]


# --- publishes --------------------------------------------------------------------------------------------


async def test_a_publish_reaches_the_topics_of_all_processes_once(shared_server: RunningServer) -> None:
    async with asyncio.timeout(PATIENCE), connect(url(shared_server)) as client:
        topics = await make_topics(client, "published")
        for batch in range(3):
            for part in range(2):
                for chunk, topic in enumerate(topics):
                    await client.stage("job", batch, part, 1, chunk, topic, None, 0, [f"{batch}-{part}"])
                await client.finish_stage("job", batch, part, 1, len(topics))
            published = await client.publish_staged("job", batch, {0: 1, 1: 1})
            assert published.message_count == 2 * len(topics)
            assert (await client.publish_staged("job", batch, {0: 1, 1: 1})).is_repeated
        expected = [f"{batch}-{part}" for batch in range(3) for part in range(2)]
        for topic in topics:
            assert await read(client, topic) == expected
        while (await client.get_sink("job")).is_open:
            await client.ping()


# --- figures ----------------------------------------------------------------------------------------------


async def test_metrics_are_those_of_all_processes(shared_server: RunningServer) -> None:
    async with asyncio.timeout(PATIENCE), connect(url(shared_server)) as client:
        before = metric(await client.get_metrics(), "courser_appended_messages_total")
        for topic in await make_topics(client, "counted"):
            await client.send_messages(topic, None, 0, ["one", "two"])
        text = await client.get_metrics()
        assert metric(text, "courser_appended_messages_total") - before == 2 * PROCESS_COUNT
        for number in range(PROCESS_COUNT):
            labels = f'{{stream="counted",topic="topic-{number}",partition="0"}}'
            assert metric(text, f"courser_partition_messages{labels}") == 2
        assert text.count("# TYPE courser_appended_messages_total") == 1


def metric(text: str, name: str) -> float:
    return next((float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} ")), 0.0)


# --- transports -------------------------------------------------------------------------------------------


def ask(server: RunningServer, method: str, path: str, body: Any = None, token: str | None = None) -> Any:
    request = urllib.request.Request(f"http://{server.address_of('http')}{path}", method=method)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    data = None if body is None else json.dumps(body).encode()
    if data is not None:
        request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, data, timeout=PATIENCE) as reply:
        text = reply.read()
    return json.loads(text) if text else None


def test_every_topic_can_be_used_over_http(shared_server: RunningServer) -> None:
    token = ask(shared_server, "POST", "/users/login", {"username": "iggy", "password": "iggy"})["access_token"][
        "token"
    ]
    ask(shared_server, "POST", "/streams", {"name": "http"}, token)
    for number in range(PROCESS_COUNT):
        topic = {"name": f"topic-{number}", "partitions_count": 1, "compression_algorithm": "none", "message_expiry": 0}
        ask(shared_server, "POST", "/streams/http/topics", topic | {"max_topic_size": 0}, token)
        path = f"/streams/http/topics/topic-{number}/messages"
        message = {"payload": "aGVsbG8="}
        sent = {"partitioning": {"kind": "partition_id", "value": "AAAAAA=="}, "messages": [message]}
        ask(shared_server, "POST", path, sent, token)
        found = ask(
            shared_server, "GET", f"{path}?consumer_id=1&partition_id=0&kind=first&value=0&count=10", None, token
        )
        assert [message["payload"] for message in found["messages"]] == ["aGVsbG8="]


def test_the_changes_of_the_metadata_are_the_same_whichever_process_is_asked(shared_server: RunningServer) -> None:
    login = {"username": "iggy", "password": "iggy"}
    token = ask(shared_server, "POST", "/users/login", login)["access_token"]["token"]
    latest = ask(shared_server, "GET", "/metadata/changes?from=latest", None, token)["next"]
    ask(shared_server, "POST", "/streams", {"name": "changed"}, token)
    # Each request has a connection of its own.
    path = f"/metadata/changes?after={latest}&groups=streams"
    pages = [ask(shared_server, "GET", path, None, token) for _ in range(4 * PROCESS_COUNT)]
    assert [record["name"] for record in pages[0]["records"]] == ["changed"]
    assert pages == pages[:1] * len(pages)


@pytest.mark.parametrize("release", [pytest.param("0.8.0", marks=pytest.mark.slow), "0.9.0", "0.9.1.dev5"])
def test_sdks_use_topics_of_every_process(shared_server: RunningServer, release: str) -> None:
    with Conversation(release, shared_server.address) as child:
        child.ask("connect", client="own")
        for number in range(PROCESS_COUNT):
            place = {"stream": f"sdk-{release}-{number}", "topic": "topic"}
            child.ask("create", client="own", partitions=1, **place)
            # Large ones before and after the connection moves.
            payloads = ["x" * 300_000, *("small" for _ in range(STREAK_COUNT)), "y" * 300_000]
            for payload in payloads:
                child.ask("send", client="own", payloads=[payload], **place)
            found = child.ask("poll", client="own", **place)
            assert [payload for _, payload, _ in found] == payloads


async def test_encrypted_connections_reach_every_topic(tmp_path: Path) -> None:
    count = 2
    settings = {"server.processes": count, "tcp.tls.enabled": "true", "tcp.tls.self_signed": "true"}
    with RunningServer(tmp_path / "server", settings=settings) as server:
        certificate_file = tmp_path / "certificate.pem"
        # Both processes have the same certificate.
        found = {ssl.get_server_certificate((server.host, server.port)) for _ in range(8)}
        certificate_file.write_text(found.pop())
        assert not found
        address = f"{url(server)}?tls=true&tls_domain=localhost&tls_ca_file={certificate_file}"
        for number in range(4):
            async with asyncio.timeout(PATIENCE), connect(address) as client:
                for topic in await make_topics(client, f"tls-{number}", count):
                    # Enough for a connection to move, if encrypted ones did.
                    for _ in range(STREAK_COUNT + 1):
                        await client.send_messages(topic, None, 0, ["x" * 1000])
                    assert len(await read(client, topic)) == STREAK_COUNT + 1


# --- telemetry --------------------------------------------------------------------------------------------


async def test_requests_metrics_and_logs_of_all_processes_are_exported_once(tmp_path: Path) -> None:
    count, client_count = 2, 6
    with Receiver() as receiver:
        endpoints = {
            f"telemetry.{signal}.endpoint": receiver.endpoint(signal) for signal in ("traces", "logs", "metrics")
        }
        settings = {
            "server.processes": count,
            "telemetry.enabled": "true",
            "telemetry.traces.one_in": 1,
            "telemetry.metrics.interval": "1 s",
        } | endpoints
        with RunningServer(tmp_path / "server", settings=settings) as server:
            async with asyncio.timeout(PATIENCE):
                for number in range(client_count):
                    # New connections: the processes accept them in turns that nobody knows.
                    async with connect(url(server)) as client:
                        topics = await make_topics(client, f"traced-{number}", count)
                        for topic in topics:
                            await client.send_messages(topic, None, 0, ["one"])
            sent_count = client_count * count
            await asyncio.to_thread(receiver.wait_for, lambda: appended_count(receiver) == sent_count)
            assert server.stop() == 0
        names = [span.name for span in receiver.spans]
        assert names.count("SendMessages") == names.count("CreateTopic") == sent_count
        texts = [record.body.string_value for record in receiver.records]
        assert sum(text.startswith("stopped") for text in texts) == 1
        assert len(texts) == len(set(zip(texts, (record.time_unix_nano for record in receiver.records), strict=True)))


def appended_count(receiver: Receiver) -> float:
    metric = receiver.metrics.get("courser_appended_messages_total")
    return 0 if metric is None else sum(point.as_int + point.as_double for point in metric.sum.data_points)
