"""Clients that have not logged in, or have and want too much: nobody else notices much of them.

Latencies are compared within one run, so a slow machine is slow on both sides.
"""

import contextlib
import select
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from courser.api import commands as c
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition
from tests.torture.clients import ClassicClient, Client, Crowd, VsrClient
from tests.torture.conftest import Target
from tests.torture.process import MIB, Process, until
from tests.torture.test_load import many_descriptors

__all__ = ["many_descriptors"]

MakeTarget = Callable[..., Target]
SEND = c.SendMessages("s", "t", ToPartition(0), [])
RATIO_MAX = 20
"""How many times as long a healthy request usually may take beside hostile clients."""
LATENCY_MIN = 0.01
"""Seconds that nobody calls slow. Held up by all requests that were sent ahead, a send would take a second or more."""
SPARE = 144 * MIB
"""Bytes besides the replies themselves: buffers that are kept for the next polls (32 MiB), buffers of polls under way,
which grow by doubling (64 MiB here), two replies that are converted, what the allocator has not given back yet."""


class Flood:
    """Sends the same bytes on all sockets for as long as they are taken, and reads the answers, in a thread."""

    def __init__(self, clients: list[Client], data: list[bytes], *, pause: float = 0.0, reads: bool = True) -> None:
        self._rest = {client.socket: memoryview(b"") for client in clients}
        self._data = {client.socket: each for client, each in zip(clients, data, strict=True)}
        self._pause, self._reads = pause, reads
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flood")
        self.sent_size = 0

    def __enter__(self) -> Self:
        for each in self._rest:
            each.setblocking(False)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while self._rest and not self._ended.wait(self._pause):
            open_sockets = list(self._rest)
            readable, writable, _ = select.select(open_sockets if self._reads else [], open_sockets, [], 0.05)
            for each in {*readable, *writable}:
                try:
                    if each in readable and not each.recv(1 << 20):
                        raise ConnectionResetError
                    if each in writable:
                        self._send(each)
                except BlockingIOError:
                    continue
                except OSError:
                    self._rest.pop(each, None)

    def _send(self, each: socket.socket) -> None:
        rest = self._rest[each] or memoryview(self._data[each])
        sent = each.send(rest)
        self._rest[each] = rest[sent:]
        self.sent_size += sent


def latency_of_sends(target: Target, seconds: float, count_min: int = 100) -> float:
    """Seconds of a small send: the median, because other programs may hold up some of them for long."""
    latencies: list[float] = []
    with target.connect("vsr") as client:
        end = time.monotonic() + seconds
        while len(latencies) < count_min or time.monotonic() < end:
            began = time.perf_counter()
            client.do(SEND, [b"x" * 100])
            latencies.append(time.perf_counter() - began)
    return statistics.median(latencies)


def test_strangers_that_send_pings_ahead_hold_nobody_up(target: Target) -> None:
    before = latency_of_sends(target, 0.5)
    with Crowd(ClassicClient(target.port) for _ in range(10)) as strangers:
        pings = [stranger.request(c.Ping()) * 8000 for stranger in strangers]
        with Flood(strangers, pings) as flood:
            until(lambda: flood.sent_size > 10 * 64 * 1024, "the flood")
            beside = latency_of_sends(target, 2)
            began = time.monotonic()
            with VsrClient(target.port).login() as client:
                client.do(c.Ping())
            login = time.monotonic() - began
            assert flood.sent_size, "nobody was there"
    print(f"\nsend {before * 1000:.2f} ms, beside 10 strangers {beside * 1000:.2f} ms; login {login:.2f} s")
    assert beside < RATIO_MAX * max(before, LATENCY_MIN)


def test_all_places_are_taken_by_strangers_that_ping_and_every_login_succeeds(make_target: MakeTarget) -> None:
    target = make_target(settings={"tcp.connection_count_max": "100", "tcp.login_deadline": "5s"})
    with target.watch(), contextlib.ExitStack() as stack:
        strangers = stack.enter_context(Crowd(ClassicClient(target.port) for _ in range(150)))
        pings = [stranger.request(c.Ping()) for stranger in strangers]
        stack.enter_context(Flood(strangers, pings, pause=0.01))
        for _ in range(17):
            member = stack.enter_context(target.connect("vsr"))
            member.do(c.Ping())
        until(
            lambda: "it missed the login deadline" in target.server.output,
            "the end of the strangers, whatever they send",
        )
    assert "refused a connection" not in target.server.output


@contextlib.contextmanager
def liars(target: Target, count: int) -> Iterator[Flood]:
    """Users without any permission who declare 64 MiB each, and send 80 KiB a second."""
    with target.connect("vsr") as root:
        root.ask(c.CreateUser("liar", "password", True, None))
    with Crowd() as crowd:
        crowd.extend(VsrClient(target.port).login("liar", "password") for _ in range(count))
        for liar in crowd:
            # The declared size is in the header, and what follows is anything.
            header = bytearray(liar.request(SEND, [b"x"])[:256])
            header[48:52] = (64 * MIB - 512).to_bytes(4, "little")
            liar.send(bytes(header) + bytes(100_000))
        with Flood(crowd, [bytes(8 * 1024)] * count, pause=0.1) as flood:
            yield flood


def test_who_declares_much_and_sends_slowly_holds_nobody_up(target: Target) -> None:
    with liars(target, 9) as flood, target.connect("vsr") as honest:
        until(lambda: flood.sent_size > 9 * 16 * 1024, "the liars")
        began = time.monotonic()
        for _ in range(5):
            honest.do(SEND, [bytes(1_000_000)])
        seconds = time.monotonic() - began
    print(f"\n5 sends of 1 MB beside 9 that declare 64 MiB: {seconds:.2f} s")
    assert seconds < 40, "it was 40 s for one"


def test_when_slow_senders_fill_the_memory_they_go(make_target: MakeTarget) -> None:
    target = make_target(settings={"tcp.request_memory": "4 MiB"})
    with liars(target, 24), target.connect("vsr") as honest:
        began = time.monotonic()
        honest.do(SEND, [bytes(6_000_000)])
        print(f"\na request larger than all memory, beside 24 slow ones: {time.monotonic() - began:.2f} s")
        until(lambda: "other clients wait for its memory" in target.server.output, "the end of slow senders")


def test_classic_readers_that_never_read_stay_within_the_memory_for_replies(make_target: MakeTarget) -> None:
    target = make_target(settings={"tcp.reply_memory": "64 MiB", "tcp.connection_count_max": "2000"})
    with target.connect("vsr") as root:
        for _ in range(10):
            root.do(SEND, [bytes(1000)] * 1000)
    process = Process(target.server.process.pid)
    everything = c.PollMessages(Consumer(ConsumerKind.CONSUMER, 1), "s", "t", 0, PollingKind.FIRST, 0, 100_000, False)
    with target.watch() as witness, Crowd() as readers:
        before = process.memory
        process.forget_peak()
        for _ in range(1500):
            reader = target.connect("classic")
            reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            readers.append(reader)
        connected = process.memory
        for reader in readers:
            reader.send(reader.request(everything) * 3)
        rounds = len(witness.latencies)
        until(lambda: len(witness.latencies) > rounds + 50, "fifty rounds beside them")
        growth = process.memory_peak - connected
        print(
            f"\n1,500 connections: {(connected - before) // MIB} MiB; "
            f"their replies, which they never read: {growth // MIB} MiB; {witness.figures}"
        )
        assert growth < 64 * MIB + SPARE
