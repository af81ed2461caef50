"""Many clients, slow ones, greedy ones: memory stays bounded, others are served, and afterwards all is as before.

Latencies are printed, not judged, but for one rule: the witness gets on. ``-s`` shows the figures.
"""

import contextlib
import resource
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from courser.api import commands as c
from courser.errors import ErrorCode
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition
from courser.model.topic_options import TopicOptions
from courser.records.classic import Dialect
from courser.wire import writing as w
from tests.torture.clients import WIRES, ClassicClient, Client, Crowd, VsrClient
from tests.torture.conftest import Target
from tests.torture.process import MIB, Process, until
from tests.torture.witness import Witness
from tests.wire.classic_client import Message, frame

every_wire = pytest.mark.parametrize("wire", WIRES)
MakeTarget = Callable[..., Target]
SEND = c.SendMessages("s", "t", ToPartition(0), [])
SPARE = 96 * MIB
"""Bytes by which the server may be larger than before: caches, buffers that are kept, also one for a large message."""
HOLD_UP = 2.0
"""Seconds of a round below which nobody says that it was held up: a busy machine alone may take as long."""


def poll(count: int) -> c.PollMessages:
    return c.PollMessages(Consumer(ConsumerKind.CONSUMER, 1), "s", "t", 0, PollingKind.FIRST, 0, count, False)


@pytest.fixture(autouse=True, scope="module")
def many_descriptors() -> Iterator[None]:
    """A thousand connections have two ends."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if before[1] == resource.RLIM_INFINITY else min(4096, before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], wanted), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def back_to_normal(target: Target) -> Iterator[Process]:
    """Afterwards the server has as many descriptors and connections as before, and not much more memory."""
    process = Process(target.server.process.pid)
    memory, descriptors, clients = process.memory, process.descriptor_count, client_count(target)
    yield process
    until(lambda: process.descriptor_count <= descriptors + 2, "closing")
    until(lambda: client_count(target) == clients, "the end of the sessions")
    until(lambda: process.memory < memory + SPARE, "memory given back")
    print(
        f"\nmemory before {memory // MIB} MiB, peak {process.memory_peak // MIB} MiB, now {process.memory // MIB} MiB"
    )


def client_count(target: Target) -> int:
    with target.connect("vsr") as root:
        rows = root.do(c.GetClients())
    count = position = 0
    while position < len(rows):
        # Client, user, transport, address, number of groups.
        position += 9 + 4 + struct.unpack_from("<I", rows, position + 9)[0] + 4
        count += 1
    return count


# --- many ---------------------------------------------------------------------------------------------


def test_a_thousand_idle_connections(target: Target) -> None:
    with back_to_normal(target) as process, target.watch() as witness, Crowd() as clients:
        before = process.memory
        clients.extend(target.connect(("classic", "vsr")[number % 2]) for number in range(1000))
        assert client_count(target) >= 1000
        rounds = len(witness.latencies)
        until(lambda: len(witness.latencies) > rounds + 100, "a hundred rounds beside a thousand connections")
        print(f"\n1,000 connections: {(process.memory - before) / 1000 / 1024:.0f} KiB each; {witness.figures}")
        assert process.memory - before < 1000 * 64 * 1024
        for client in clients[::50]:
            client.do(c.Ping())


def test_more_connections_than_are_allowed_are_turned_away_and_nobody_else_is(make_target: MakeTarget) -> None:
    target = make_target(settings={"tcp.connection_count_max": "10"})
    with target.watch():
        with Crowd(target.connect("vsr") for _ in range(9)) as clients:
            assert not any(is_let_in(target) for _ in range(200))
            for client in clients:
                client.do(c.Ping())
        until(lambda: is_let_in(target), "room for one more")
    assert target.server.output.count("refused a connection") <= 100, "not one line for each"


def is_let_in(target: Target) -> bool:
    with VsrClient(target.port) as client:
        client.send(client.request(c.Ping()))
        return client.fate() is not None


def test_few_descriptors(make_target: MakeTarget) -> None:
    target = make_target(prefix=("prlimit", "--nofile=64"))
    process = Process(target.server.process.pid)
    with Crowd(VsrClient(target.port) for _ in range(60)) as clients:
        # Half of the descriptors are for connections. Nobody has logged in, so the oldest make room for the last.
        clients[-1].do(c.Ping())
        for client in clients:
            client.send(client.request(c.Ping()))
        is_served = [client.fate() is not None for client in clients]
        gone = is_served.count(False)
        assert is_served == [False] * gone + [True] * (60 - gone)
        # The server may not have seen yet that the two connections of its start are closed.
        assert gone in (28, 29, 30)
    until(lambda: process.descriptor_count < 30, "closing")
    with target.connect("vsr") as root:
        root.do(c.CreateTopic("s", "many", 100, TopicOptions()))
        sends = [c.SendMessages("s", "many", ToPartition(number), []) for number in range(100)]
        statuses = [root.ask(send, [b"x"]).status for send in sends]
        refused = statuses.count(ErrorCode.STORAGE_FAILURE)
        assert refused, "the descriptors were enough: this proves nothing"
        assert statuses == [0] * (100 - refused) + [ErrorCode.STORAGE_FAILURE] * refused
        # Those that have their files go on, and everything can be read.
        assert {root.ask(send, [b"y"]).status for send in sends[:20]} == {0}
        assert not root.ask(poll(1)).status
        for command in (c.GetStream("s"), c.GetClients(), c.GetStats()):
            assert not root.ask(command).status
        assert root.ask(c.GetSnapshot(1, (100,))).status in (0, ErrorCode.SNAPSHOT_FAILED)
        assert root.ask(c.CreateStream("more")).status in (0, ErrorCode.STORAGE_FAILURE)
        # What makes room is possible, and then all is well.
        root.do(c.DeleteTopic("s", "many"))
        until(lambda: process.descriptor_count < 40, "closing")
        root.do(c.CreateTopic("s", "few", 10, TopicOptions()))
        root.do(c.SendMessages("s", "few", ToPartition(9), []), [b"x"])
    assert target.server.stop() == 0


# --- slow ---------------------------------------------------------------------------------------------


@every_wire
def test_a_hundred_readers_that_never_read(make_target: MakeTarget, wire: str) -> None:
    target = make_target(settings={"tcp.reply_memory": "64 MiB", "tcp.send_deadline": "3s"})
    with target.connect("vsr") as root:
        for _ in range(10):
            root.do(SEND, [bytes(1000)] * 1000)
    with back_to_normal(target) as process, target.watch() as witness, Crowd() as readers:
        rounds = rounds_so_far(witness)
        readers.extend(greedy_reader(target, wire) for _ in range(100))
        until(lambda: len(witness.latencies) > rounds + 100, "a hundred rounds beside them")
        print(f"\n100 readers that never read, {wire}: peak {process.memory_peak // MIB} MiB; {witness.figures}")
        # Messages once as they were read, once as they are sent; a quarter of a MiB for everybody in any case.
        assert process.memory_peak < (64 + 25) * 2 * MIB + 150 * MIB
        until(lambda: process.descriptor_count < 30, "the end of all readers")
    until(lambda: "it did not read its reply in time" in target.server.output, "the reason is logged")


@every_wire
def test_readers_of_a_large_message_that_never_read(make_target: MakeTarget, wire: str) -> None:
    """A poll gives one message at least; that every reader gets one at the same time is too much to ask."""
    target = make_target(settings={"tcp.reply_memory": "64 MiB"})
    with target.connect("vsr") as root:
        root.do(SEND, [bytes(40_000_000)])
    with back_to_normal(target) as process, target.watch() as witness:
        before = process.memory
        process.forget_peak()
        with Crowd(target.connect(wire) for _ in range(16)) as readers:
            for reader in readers:
                reader.send(reader.request(poll(1)))
            rounds = rounds_so_far(witness)
            until(lambda: len(witness.latencies) > rounds + 20, "twenty rounds beside them")
        with target.connect(wire) as patient:
            assert len(patient.do(poll(1))) > 40_000_000
        growth = process.memory_peak - before
        print(f"\n16 readers of a message of 40 MB, {wire}: {growth // MIB} MiB more at most")
        assert growth < 240 * MIB, "all of them at once would be 640 MB, twice that once they are converted"


def greedy_reader(target: Target, wire: str) -> Client:
    client = target.connect(wire)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    # More than the kernel keeps for it, also if each reply is as small as replies get when memory is scarce.
    client.send(client.request(poll(100_000)) * 400)
    return client


@every_wire
def test_clients_that_send_without_end_and_read_nothing(target: Target, wire: str) -> None:
    with back_to_normal(target) as process, target.watch() as witness, Crowd() as clients:
        before = process.memory
        clients.extend(target.connect(wire) for _ in range(20))
        with ThreadPoolExecutor(20) as pool:
            sent = sum(pool.map(send_until_stuck, clients))
        print(f"\n20 clients sent {sent // MIB} MiB of requests before they were held up; {witness.figures}")
        assert process.memory - before < 64 * MIB


def send_until_stuck(client: Client) -> int:
    """Send requests until nothing more is taken for a while."""
    data = client.request(c.GetStats()) * 500
    client.socket.setblocking(False)
    sent = 0
    while select.select([], [client.socket], [], 0.5)[1]:
        sent += client.socket.send(data[sent % len(data) :])
        assert sent < 200 * MIB, "nobody holds it up"
    return sent


def test_slow_senders_are_cut_off(make_target: MakeTarget) -> None:
    target = make_target(settings={"tcp.frame_deadline": "2s", "tcp.login_deadline": "2s"})
    with back_to_normal(target), target.watch(), Crowd() as dripping, Crowd() as silent:
        silent.extend(VsrClient(target.port) for _ in range(50))
        dripping.extend(target.connect(("classic", "vsr")[number % 2]) for number in range(50))
        requests = [client.request(SEND, [bytes(10_000)]) for client in dripping]
        sockets = [client.socket for client in dripping]
        for position in range(1000):
            for client, request in zip(dripping, requests, strict=True):
                client.send(request[position : position + 1])
            if len(select.select(sockets, [], [], 0.05)[0]) == len(sockets):
                break
        assert [client.fate() for client in (*dripping, *silent)] == [None] * 100


def test_who_announces_much_and_sends_little_gets_no_memory_for_it(make_target: MakeTarget) -> None:
    target = make_target(settings={"tcp.frame_deadline": "2s", "tcp.request_memory": "16 MiB"})
    with back_to_normal(target) as process, target.watch(), Crowd() as liars:
        before = process.memory
        liars.extend(target.connect(("classic", "vsr")[number % 2]) for number in range(6))
        for liar in liars:
            liar.send(liar.request(SEND, [bytes(12_000_000)])[:1000])
        assert process.memory - before < 32 * MIB
        # They are found out one by one, and in the end an honest one gets the memory.
        with target.connect("vsr") as honest:
            honest.socket.settimeout(60)
            honest.do(SEND, [bytes(12_000_000)])


# --- greedy -------------------------------------------------------------------------------------------


@every_wire
def test_many_large_requests_at_once_share_the_memory_for_requests(make_target: MakeTarget, wire: str) -> None:
    target = make_target(settings={"tcp.request_memory": "32 MiB"})
    with back_to_normal(target) as process, target.watch() as witness, Crowd() as clients:
        clients.extend(target.connect(wire) for _ in range(24))
        requests = [client.request(SEND, [bytes(5_000_000)] * 2) for client in clients]
        process.forget_peak()
        before = process.memory
        with ThreadPoolExecutor(24) as pool:
            answers = list(
                pool.map(lambda client, request: (client.send(request), client.receive()), clients, requests)
            )
        assert {answer.status for _, answer in answers} == {0}
        growth = process.memory_peak - before
        print(f"\n24 requests of 10 MB at once, {wire}: {growth // MIB} MiB more at most; {witness.figures}")
        assert growth < 120 * MIB, "all of them at once would be 240 MB, twice that once they are converted"


def test_a_flood_of_logins(target: Target) -> None:
    """Wrong passwords from many addresses: those who are here notice nothing, and others get in."""
    with back_to_normal(target), target.watch() as witness, ThreadPoolExecutor(32) as pool:
        end = time.monotonic() + 3
        guesses = [pool.submit(guess, target.port, number, end) for number in range(32)]
        rounds = len(witness.latencies)
        with target.connect("vsr") as honest, VsrClient(target.port).login() as with_password:
            honest.do(c.Ping())
            with_password.do(c.Ping())
        until(lambda: len(witness.latencies) > rounds + 100, "a hundred rounds beside the flood")
        count = sum(guess.result() for guess in guesses)
        print(f"\n{count} wrong passwords in 3 s; {witness.figures}")


def guess(port: int, number: int, end: float) -> int:
    count = 0
    with WIRES[("classic", "vsr")[number % 2]](port, f"127.0.2.{number + 1}") as client:
        # On a machine that is busy with other things the time alone would make no flood.
        while count < 2 or time.monotonic() < end:
            answer = client.ask(c.LoginUser(f"user-{number}", f"wrong-{count}"))
            assert answer.status in ((9,) if answer.is_eviction else (ErrorCode.INVALID_CREDENTIALS,))
            count += 1
    return count


# --- what takes long ----------------------------------------------------------------------------------


def dense_request(dialect: Dialect, size: int) -> bytes:
    """A send of very many tiny messages, with old user headers if the dialect has them."""
    headers = b"" if dialect.has_long_header else struct.pack("<I", 1) + b"k\2" + struct.pack("<I", 2) + b"%02d"
    encoded = [
        Message(b"x" * (1 + number % 7), user_headers=headers % number if headers else b"").encoded(dialect)
        for number in range(100)
    ]
    repeats = size // (sum(map(len, encoded)) + 1600)
    ends = np.cumsum(np.tile([len(message) for message in encoded], repeats))
    index = np.zeros(len(ends), np.dtype([("offset", "<u4"), ("end", "<u4"), ("timestamp", "<u8")]))
    index["end"] = ends
    first_id = 1 if dialect is Dialect.SDK_0_5 else 0
    target = w.identifier("s") + w.identifier("t") + w.partitioning(ToPartition(0), first_id)
    metadata = target + struct.pack("<I", len(ends))
    payload = struct.pack("<I", len(metadata)) + metadata + index.tobytes() + b"".join(encoded) * repeats
    return frame(101, payload)


@pytest.mark.parametrize("dialect", list(Dialect), ids=lambda dialect: dialect.value)
def test_a_request_that_takes_long_to_convert_holds_nobody_up(target: Target, dialect: Dialect) -> None:
    """A second of work for one client, in which others are answered all the while."""
    with target.connect("vsr") as root:
        root.do(c.PurgeTopic("s", "t"))
    request = dense_request(dialect, 20_000_000)
    with ClassicClient(target.port, dialect=dialect).login() as client, target.watch() as witness:
        first = rounds_so_far(witness)
        began = time.monotonic()
        client.send(request)
        assert not client.receive().status
        sending, beside = time.monotonic() - began, len(witness.latencies) - first
        rounds, began = len(witness.latencies), time.monotonic()
        client.send(client.request(poll(100_000)))
        assert client.receive().body
        polling = time.monotonic() - began
        figures = f"{beside} rounds meanwhile; poll {polling:.2f} s, {len(witness.latencies) - rounds} rounds"
        print(
            f"\n{len(request) // 1_000_000} MB of {dialect.value}: send {sending:.2f} s, {figures}; {witness.figures}"
        )
        until(lambda: len(witness.latencies) > rounds + 1, "the round that was under way")
        # A round takes a few milliseconds beside a thread that is busy, and more if other programs want the processor.
        # Held up, one of them would take as long as all of the work.
        assert max(witness.latencies[first:]) < max(sending / 2, HOLD_UP)


def rounds_so_far(witness: Witness) -> int:
    until(lambda: len(witness.latencies) > 20, "the beginning of the witness")
    return len(witness.latencies)


def test_a_topic_with_a_thousand_partitions_holds_nobody_up(target: Target) -> None:
    with back_to_normal(target), target.watch() as witness, target.connect("vsr") as root:
        rounds, began = rounds_so_far(witness), time.monotonic()
        root.do(c.CreateTopic("s", "wide", 1000, TopicOptions()))
        seconds, beside = time.monotonic() - began, len(witness.latencies) - rounds
        print(f"\n1,000 partitions in {seconds:.2f} s, {beside} rounds meanwhile; {witness.figures}")
        assert beside > 10
        root.do(c.SendMessages("s", "wide", ToPartition(999), []), [b"x"])
        root.do(c.DeleteTopic("s", "wide"))
