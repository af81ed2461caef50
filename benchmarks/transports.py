"""HTTP, WebSocket and QUIC compared with TCP on the same server, and HTTP with a bare application.

What counts is the CPU time of the server. Time on the clock would mostly show how fast the clients of this process are,
which are written for convenience, and how busy the machine is.
"""

import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from random import Random

from benchmarks.harness import Bench, Bound, Row, Target
from benchmarks.samples import ORIGIN, SAME_SIZE
from benchmarks.serving import Running
from benchmarks.transport_clients import Address, BinaryClient, HttpClient, binary_client, http_client, json_send
from courser.api import commands as c
from courser.bench.private_server import PrivateServer, private_server
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch

_SETTINGS = [
    f"{transport}.{key}={value}"
    for transport in ("http", "websocket", "quic")
    for key, value in (("enabled", "true"), ("address", "127.0.0.1:0"))
]
_STREAM, _LARGE_TOPIC, _SMALL_TOPIC = "bench", "large", "small"
_CONSUMER = Consumer(ConsumerKind.CONSUMER, 1)
_JSON_TARGET, _RAW_TARGET = 0.25, 0.5
RAW_TYPE = "application/octet-stream"

Work = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Measure:
    """One kind of request, over every transport that has it."""

    name: str
    count: int
    """Requests in one round."""
    over: dict[str, Work]

    async def round(self, processes: dict[str, Running]) -> dict[str, float]:
        """Requests per second of CPU time, by transport."""
        found = {}
        for transport, work in self.over.items():
            process = processes[transport]
            before = process.cpu_seconds()
            for _ in range(self.count):
                await work()
            found[transport] = self.count / max(process.cpu_seconds() - before, 1e-9)
        return found


@contextmanager
def bare_application(message_count: int) -> Iterator[Running]:
    """The application that only converts."""
    command = [sys.executable, "-m", "benchmarks.bare_application", str(message_count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Running(int(process.stdout.readline()), process.pid)
        finally:
            process.kill()


def _addresses(server: PrivateServer) -> dict[str, Address]:
    configuration = tomllib.loads((server.data / "runtime" / "current_config.toml").read_text())
    found = {}
    for transport in ("tcp", "http", "websocket", "quic"):
        host, _, port = configuration[transport]["address"].rpartition(":")
        found[transport] = (host, int(port))
    return found


class _Requests:
    """The requests to measure, as commands and as HTTP."""

    def __init__(self, message_count: int) -> None:
        source = Random(7)
        self.payloads = [source.randbytes(SAME_SIZE) for _ in range(message_count)]
        self.ids = [source.getrandbits(128) for _ in range(message_count)]
        self.message_count = message_count

    def send(self, topic: str, payloads: list[bytes]) -> c.SendMessages:
        messages = [NewMessage(payload, number, ORIGIN) for payload, number in zip(payloads, self.ids, strict=False)]
        return c.SendMessages(_STREAM, topic, ToPartition(0), [build_batch(messages)])

    def poll(self, topic: str, count: int) -> c.PollMessages:
        return c.PollMessages(_CONSUMER, _STREAM, topic, 0, PollingKind.FIRST, 0, count, False)

    def json_send(self, client: HttpClient, topic: str, count: int) -> bytes:
        body = json_send(self.payloads[:count], self.ids[:count])
        return client.request("POST", f"/streams/{_STREAM}/topics/{topic}/messages", body)

    def json_poll(self, client: HttpClient, topic: str, count: int) -> bytes:
        return client.request("GET", f"/streams/{_STREAM}/topics/{topic}/messages?kind=first&count={count}")

    def raw_send(self, client: HttpClient, topic: str, payload: bytes) -> bytes:
        path = f"/streams/{_STREAM}/topics/{topic}/messages?partition_id=0&id=7"
        return client.request("POST", path, payload, RAW_TYPE)


def _asking(client: BinaryClient, command: c.Command) -> Work:
    return lambda: client.ask(command)


def _fetching(client: HttpClient, request: bytes) -> Work:
    return lambda: client.exchange(request)


@asynccontextmanager
async def _clients(
    server: PrivateServer, bares: dict[str, Running]
) -> AsyncIterator[tuple[dict[str, BinaryClient], dict[str, HttpClient]]]:
    addresses = _addresses(server)
    async with AsyncExitStack() as stack:
        binary = {
            transport: await stack.enter_async_context(binary_client(transport, addresses[transport], server.target))
            for transport in ("tcp", "websocket", "quic")
        }
        http = {"http": await stack.enter_async_context(http_client(addresses["http"], server.target))}
        for name, process in bares.items():
            http[name] = await stack.enter_async_context(http_client(("127.0.0.1", process.port)))
        yield binary, http


def _measures(bench: Bench, binary: dict[str, BinaryClient], http: dict[str, HttpClient]) -> Iterator[Measure]:
    requests = _Requests(bench.scale.message_count)
    whole = requests.message_count
    for count, topic, bare, repeats in (
        (whole, _LARGE_TOPIC, "bare large", max(bench.scale.append_size // (8 * whole * SAME_SIZE), 1)),
        (1, _SMALL_TOPIC, "bare small", max(bench.scale.single_count // 10, 1)),
    ):
        what = "single messages" if count == 1 else f"{count:,} x {SAME_SIZE:,} B"
        send, poll = requests.send(topic, requests.payloads[:count]), requests.poll(topic, count)
        for verb, command, encode in (("send", send, requests.json_send), ("poll", poll, requests.json_poll)):
            over = {transport: _asking(client, command) for transport, client in binary.items()}
            over |= {name: _fetching(http[name], encode(http[name], topic, count)) for name in ("http", bare)}
            yield Measure(f"{verb} {what}", repeats, over)
    large = b"".join(requests.payloads)
    for what, payload, topic, repeats in (
        (f"a message of {len(large):,} B", large, _LARGE_TOPIC, max(bench.scale.append_size // (8 * len(large)), 1)),
        (f"a message of {SAME_SIZE:,} B", requests.payloads[0], _SMALL_TOPIC, max(bench.scale.single_count // 10, 1)),
    ):
        over = {
            "tcp": _asking(binary["tcp"], requests.send(topic, [payload])),
            "raw http": _fetching(http["http"], requests.raw_send(http["http"], topic, payload)),
        }
        yield Measure(f"send {what}", repeats, over)


async def _rounds(bench: Bench, server: PrivateServer, bares: dict[str, Running]) -> dict[str, list[dict[str, float]]]:
    ours = Running(server.target.port, server.process_id)
    processes = dict.fromkeys(("tcp", "websocket", "quic", "http", "raw http"), ours) | bares
    async with _clients(server, bares) as (binary, http):
        await binary["tcp"].ask(c.CreateStream(_STREAM))
        for topic in (_LARGE_TOPIC, _SMALL_TOPIC):
            await binary["tcp"].ask(c.CreateTopic(_STREAM, topic, 1, TopicOptions()))
        measures = list(_measures(bench, binary, http))
        return {
            measure.name: [await measure.round(processes) for _ in range(bench.scale.rounds)] for measure in measures
        }


def run(bench: Bench) -> Iterator[Row]:
    """Ratios to TCP, and of HTTP to a bare application."""
    with (
        bench.fresh_directory() as path,
        private_server(path, _SETTINGS) as server,
        bare_application(bench.scale.message_count) as large,
        bare_application(1) as small,
    ):
        found = bench.run(_rounds(bench, server, {"bare large": large, "bare small": small}))
    for measure, rounds in found.items():
        for transport in rounds[0]:
            if transport == "tcp" or transport.startswith("bare"):
                continue
            speed = [round_[transport] for round_ in rounds]
            is_raw = transport == "raw http"
            yield Row(
                measure=f"{measure} over {transport}",
                unit="requests/CPU s",
                engine=speed,
                bare=[round_["tcp"] for round_ in rounds],
                bare_name="TCP",
                target=Target(Bound.RATIO_AT_LEAST, _RAW_TARGET) if is_raw else None,
            )
            bare = next((name for name in rounds[0] if name.startswith("bare")), None)
            if transport == "http" and bare is not None:
                yield Row(
                    measure=f"{measure} over http",
                    unit="requests/CPU s",
                    engine=speed,
                    bare=[round_[bare] for round_ in rounds],
                    bare_name="bare application",
                    target=Target(Bound.RATIO_AT_LEAST, _JSON_TARGET),
                )
