"""Connections that work with topics of several processes in turn, so that none of them gets the connection."""

import asyncio
import itertools
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from benchmarks.samples import SampleBatch
from benchmarks.wires.classic_wire import ClassicWire
from benchmarks.wires.requests import SendRequest, TopicName
from benchmarks.wires.vsr_wire import VsrWire
from courser.client.client import connect
from courser.client.targets import Target
from courser.model.permissions import GlobalPermissions, Permissions
from tests.processes.processes import children_of, connection_counts
from tests.servers import RunningServer
from tests.torture.process import until

_REQUEST_POSITION = 168
"""Of the number of a request in its header."""
_ANSWERED_POSITION = 200
"""Of the same number in the reply."""
_OFFSET = struct.Struct("<Q")
_BURST = 8
"""Sends to one topic in a row: too few for the connection to move."""
_PATIENCE = 60.0


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    # Small buffers: replies that nobody reads fill them soon.
    settings = {
        "server.processes": 2,
        "tcp.socket.override_defaults": "true",
        "tcp.socket.send_buffer_size": "8 KB",
        "tcp.socket.recv_buffer_size": "16 KB",
        "tcp.socket.nodelay": "true",
    }
    with RunningServer(tmp_path_factory.mktemp("answering"), settings=settings) as server:
        yield server


def target(server: RunningServer) -> Target:
    return Target(host=server.host, port=server.port, username="iggy", password="iggy")


_names = itertools.count()


def make_topics(server: RunningServer) -> list[TopicName]:
    """Two topics of different processes."""
    stream = f"stream-{next(_names)}"
    with closing(VsrWire(target(server))) as client:
        client.create_stream(stream)
        places = [TopicName(stream, f"topic-{number}") for number in range(2)]
        for place in places:
            client.create_topic(place, 1)
    return places


def requests_of(client: VsrWire | ClassicWire, places: list[TopicName], count: int = 1) -> list[SendRequest]:
    batch = SampleBatch(tuple(b"%d" % number for number in range(count)), tuple(range(1, count + 1)))
    return [client.make_send(place, 0, batch) for place in places]


def alternate(client: VsrWire | ClassicWire, requests: list[SendRequest], burst_count: int = 2) -> None:
    """Send to both topics in turn: to one of them from another process."""
    for _ in range(burst_count):
        for request in requests:
            for _ in range(_BURST):
                client.send(request)


def line_of(client: VsrWire | ClassicWire) -> socket.socket:
    found: socket.socket = client._line.socket
    return found


def post(client: VsrWire, request: SendRequest, number: int) -> None:
    """Send a request without waiting for its reply."""
    _OFFSET.pack_into(request.frame, _REQUEST_POSITION, number)
    line_of(client).sendall(request.frame)


def take_reply(client: VsrWire) -> tuple[int, int]:
    """The number of the request that is answered, and the offset."""
    size = client._receive()
    buffer = client._line.buffer
    return _OFFSET.unpack_from(buffer, _ANSWERED_POSITION)[0], _OFFSET.unpack_from(buffer, size - 8)[0]


@pytest.mark.parametrize("kind", [VsrWire, ClassicWire])
def test_forwarded_sends_are_stored_once_and_leave_the_connection_where_it_is(
    shared_server: RunningServer, kind: Callable[[Target], VsrWire | ClassicWire]
) -> None:
    places = make_topics(shared_server)
    before = sum(connection_counts(shared_server))
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(kind(target(shared_server)))) for _ in range(3)]
        for client in clients:
            alternate(client, requests_of(client, places))
        assert sum(connection_counts(shared_server)) == before + 3
    until(lambda: sum(connection_counts(shared_server)) == before, "the end of the connections", _PATIENCE)
    with closing(VsrWire(target(shared_server))) as client:
        for place in places:
            assert client.topic_figures(place)[1] == 3 * 2 * _BURST


def test_replies_come_in_order_when_a_client_is_one_request_ahead(shared_server: RunningServer) -> None:
    places = make_topics(shared_server)
    with closing(VsrWire(target(shared_server))) as client:
        requests = requests_of(client, places)
        alternate(client, requests)
        number, count = 1_000, 400
        for step in range(count):
            post(client, requests[step // 3 % 2], number + step)
            if step:
                assert take_reply(client)[0] == number + step - 1
        assert take_reply(client)[0] == number + count - 1


def test_replies_come_in_order_when_a_client_does_not_wait_at_all(shared_server: RunningServer) -> None:
    places = make_topics(shared_server)
    with closing(VsrWire(target(shared_server))) as client:
        requests = requests_of(client, places)
        alternate(client, requests)
        sent = taken = 0
        while taken < 2_000:
            if sent < 2_000 and select.select([], [line_of(client)], [], 0)[1]:
                post(client, requests[sent // 5 % 2], 1_000 + sent)
                sent += 1
                if sent - taken < 30:
                    continue
            assert take_reply(client)[0] == 1_000 + taken
            taken += 1


def connect_narrowly(address: tuple[str, int], timeout: float | None = None) -> socket.socket:
    """A connection that takes few bytes that nobody reads. It has to be told before it is made."""
    narrow = socket.socket()
    narrow.settimeout(timeout)
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    narrow.connect(address)
    return narrow


@pytest.mark.parametrize("preferred", [0, 1])
def test_a_client_that_does_not_read_gets_every_reply_once_it_does(
    shared_server: RunningServer, preferred: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = make_topics(shared_server)
    monkeypatch.setattr(socket, "create_connection", connect_narrowly)
    with closing(VsrWire(target(shared_server))) as client, closing(VsrWire(target(shared_server))) as other:
        requests = requests_of(client, places)
        alternate(client, requests)
        expected = [other.topic_figures(place)[1] for place in places]
        posted: list[int] = []
        for number in range(2_000):
            # Too few in a row for the connection to move.
            which = preferred if number % 20 else 1 - preferred
            post(client, requests[which], 1_000 + number)
            posted.append(which)
            try:
                # One after the other: the reply to each is sent, or waits.
                until(
                    lambda: other.topic_figures(places[which])[1] > expected[which],  # noqa: B023 - called at once
                    "the next message",
                    3.0,
                )
            except AssertionError:
                break
            expected[which] += 1
        else:
            pytest.fail("the buffers never got full")
        assert len(posted) > 2 * _BURST
        offsets = [2 * _BURST, 2 * _BURST]
        for number, which in enumerate(posted):
            assert take_reply(client) == (1_000 + number, offsets[which])
            offsets[which] += 1
        # And it goes on.
        alternate(client, requests)


def test_a_client_that_goes_away_with_a_request_on_its_way_leaves_nothing_behind(shared_server: RunningServer) -> None:
    places = make_topics(shared_server)
    before = sum(connection_counts(shared_server))
    for _ in range(5):
        client = VsrWire(target(shared_server))
        requests = requests_of(client, places, 1_000)
        alternate(client, requests)
        for request in requests:
            post(client, request, 5_000)
        client.close()
    until(lambda: sum(connection_counts(shared_server)) == before, "the end of the connections", _PATIENCE)


def is_at_end(client: VsrWire) -> bool:
    """Whether the server has closed the connection."""
    line = line_of(client)
    return bool(select.select([line], [], [], 0)[0]) and not line.recv(1)


def test_the_clients_of_a_killed_process_are_disconnected_and_the_others_go_on(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "server", settings={"server.processes": 2}) as server, ExitStack() as stack:
        places = make_topics(server)
        clients: list[VsrWire] = []
        counts = [0, 0]
        while not all(counts):
            clients.append(stack.enter_context(closing(VsrWire(target(server)))))
            counts = connection_counts(server)
        for client in clients:
            alternate(client, requests_of(client, places))
        killed = children_of(server)
        os.kill(killed[0], signal.SIGKILL)
        until(lambda: sum(map(is_at_end, clients)) == counts[1], "the end of its connections", _PATIENCE)
        # The others go on, as soon as the process is back. Until its end is noticed, requests would be sent to it, and
        # nobody would know what has become of them.
        until(lambda: not set(children_of(server)) <= set(killed), "its successor", _PATIENCE)
        left = [client for client in clients if not is_at_end(client)]
        assert len(left) == counts[0]
        for client in left:
            alternate(client, requests_of(client, places))


async def test_a_connection_with_forwarded_sends_that_the_server_ends_is_closed_for_its_client(
    shared_server: RunningServer,
) -> None:
    places = make_topics(shared_server)
    async with connect(f"iggy://iggy:iggy@{shared_server.address}") as admin:
        await admin.create_user("guest", "secret", permissions=Permissions(GlobalPermissions(send_messages=True)))
        facts = Target(host=shared_server.host, port=shared_server.port, username="guest", password="secret")
        with closing(VsrWire(facts)) as client:
            alternate(client, requests_of(client, places))
            await admin.delete_user("guest")
            # Something is said before the end.
            line_of(client).setblocking(True)
            line_of(client).settimeout(_PATIENCE)
            while await asyncio.to_thread(line_of(client).recv, 4096):
                pass
