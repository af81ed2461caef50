"""QUIC under clients that mean harm: packets of their own making, floods, handshakes that never end.

In each case others are served meanwhile, nothing is left behind, and the log has one line and no failure.
"""

import asyncio
import logging
import os
import random
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import pytest
from qh3.quic.connection import QuicConnection

from courser.server.certificates import Certificate
from courser.transports.quic import STRANGER_OVERHEAD_MAX, WINDOW_SIZE, QuicClient
from courser.transports.settings import ConnectionSettings
from tests.torture.process import Process
from tests.transports.echo import frame as request
from tests.transports.quic_attacker import AttackerConnection, frame, in_packets, stream
from tests.transports.tcp_servers import GRACE, SECOND
from tests.transports.test_quic import Peer, QuicEcho, certificate, connected, one, serving, trusting

__all__ = ["certificate"]

RESET, STOP, CRYPTO, PING, NEW_ID, RETIRE_ID, PATH_CHALLENGE, BLOCKED = 4, 5, 6, 1, 0x18, 0x19, 0x1A, 0x14


@dataclass
class Attacker:
    """One who has shaken hands, and from then on sends what it likes and answers nothing."""

    quic: AttackerConnection
    transport: asyncio.DatagramTransport
    client: QuicClient
    """The server's end."""

    async def send(self, *frames: bytes, skip: int = 0) -> None:
        """Frames, as many as fit into a packet at a time, until all are sent or the server has had enough."""
        for each in in_packets(frames):
            if self.client._is_over:
                return
            self.transport.sendto(self.quic.packet(each, skip=skip))
            # The kernel drops what the server does not fetch.
            for _ in range(3):
                await asyncio.sleep(0)

    @property
    def is_cut_off(self) -> bool:
        return self.client._is_lost


@asynccontextmanager
async def attacking(server: QuicEcho, *, is_user: bool = False) -> AsyncIterator[Attacker]:
    """An attacker; with a login if it is a user."""
    before = set(server.connections)
    quic = AttackerConnection(configuration=trusting())
    transport, peer = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: Peer(quic), remote_addr=("127.0.0.1", server.port)
    )
    # The library names the address with each datagram.
    peer._transport = _Connected(transport)  # type: ignore[assignment]
    try:
        peer.connect(("127.0.0.1", server.port))
        await asyncio.wait_for(peer.wait_connected(), GRACE)
        async with asyncio.timeout(GRACE):
            while all(each in before or each.loop is None for each in server.connections):  # noqa: ASYNC110
                await asyncio.sleep(0)
            (client,) = set(server.connections) - before
            assert isinstance(client, QuicClient)
            if is_user:
                assert await peer.say(b"login") == b"login"
            quic.target = client._quic.host_cid
            peer.is_deaf = True
            if peer._timer is not None:
                peer._timer.cancel()
        yield Attacker(quic, transport, client)
    finally:
        transport.close()


class _Connected:
    def __init__(self, transport: asyncio.DatagramTransport) -> None:
        self._transport = transport

    def sendto(self, data: bytes, address: object) -> None:
        del address
        self._transport.sendto(data)


@contextmanager
def one_line(caplog: pytest.LogCaptureFixture, text: str) -> Iterator[None]:
    """The log gets one line, which says this, and no failure."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        yield
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1, lines
    assert text in lines[0]
    assert caplog.records[0].levelno == logging.INFO
    assert caplog.records[0].exc_info is None


async def until_cut_off(attacker: Attacker) -> None:
    async with asyncio.timeout(GRACE):
        while not attacker.is_cut_off:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)


VIOLATIONS = {
    "data beyond the stream's limit": (stream(0, WINDOW_SIZE, b"x"), "StreamReceiveLimit"),
    "data at an offset that no stream reaches": (stream(0, 1 << 61, b"x"), "StreamReceiveLimit"),
    "a size that another packet contradicts": (stream(0, 0, b"xx") + frame(RESET, 0, 0, 1), "FinalSize"),
    "a reset beyond the limit": (frame(RESET, 0, 0, 1 << 60), "StreamReceiveLimit"),
    "a stream beyond the limit": (stream(400, 0, b"x"), "stream limit 100 exceeded"),
    "a stream of the server": (stream(1, 0, b"x"), "stream ID 1 is invalid"),
    "an acknowledgement of what was never sent": (frame(2, 1 << 40, 0, 0, 0), "AckOfUnsentPacket"),
    "an acknowledgement below zero": (frame(2, 5, 0, 0, 10), "invalid ACK range"),
    "another connection id with the same number": (frame(NEW_ID, 1, 0, b"\x08" + bytes(24)), "ConflictingSequence"),
    "the connection id in use given up": (frame(RETIRE_ID, 0), "retired the destination CID"),
    "more streams than there are numbers": (frame(0x12, 1 << 61), "stream count exceeds"),
    "a frame that does not exist": (frame(0x3F), "unknown frame type"),
    "a frame of an extension": (frame(0x31, 5, b"hello"), "DATAGRAM"),
    "a frame of servers": (frame(0x1E), "HANDSHAKE_DONE"),
    "a token from a client": (frame(7, 5, b"token"), "NEW_TOKEN"),
    "half a frame": (stream(0, 0, b"x" * 100)[:20], "failed to parse frame"),
    "noise": (b"\x21" + b"\xff" * 40, "unknown frame type"),
}


@pytest.mark.parametrize("name", VIOLATIONS)
async def test_a_violation_ends_the_connection_with_one_line(
    certificate: Certificate, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    frames, reason = VIOLATIONS[name]
    async with one(certificate) as (server, peer), attacking(server) as attacker:
        with one_line(caplog, f"client 2 at {attacker.client._address} cut off: "):
            await attacker.send(frames)
            await until_cut_off(attacker)
        assert reason in caplog.text
        assert await peer.say(b"still here") == b"still here"
        assert server.services.memory.size == 0


FLOODS = {
    "pieces with gaps between them": [stream(0, 2 * number + 1, b"x") for number in range(50_000)],
    "pieces of a stream that gets no answer": [stream(2, 2 * number + 1, b"x") for number in range(50_000)],
    "pieces of a handshake": [frame(CRYPTO, 2 * number + 1, 1, b"x") for number in range(50_000)],
    "challenges that are to be answered": [frame(PATH_CHALLENGE, number.to_bytes(8, "big")) for number in range(5000)],
    "pings": [frame(PING)] * 20_000,
    "complaints": [frame(BLOCKED, 5)] * 10_000,
    "resets": [stream(0, 0, b"x") + frame(RESET, 0, 0, 1)] * 5000,
}
STRANGER_SIZE_MAX = ConnectionSettings().login_frame_size_max + STRANGER_OVERHEAD_MAX


@pytest.mark.parametrize("name", FLOODS)
async def test_a_stranger_sends_little_whatever_it_is(
    certificate: Certificate, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    async with one(certificate) as (server, peer), attacking(server) as attacker:
        with one_line(caplog, f"cut off: more than {STRANGER_SIZE_MAX} bytes of datagrams before a login"):
            await attacker.send(*FLOODS[name])
            await until_cut_off(attacker)
        assert await peer.say(b"still here") == b"still here"
        assert server.services.memory.size == 0


async def test_who_logs_out_is_a_stranger_again_and_has_all_of_its_share(certificate: Certificate) -> None:
    async with one(certificate) as (server, peer):
        for _ in range(3):
            assert len(await peer.say(b"x" * 100_000)) == 100_000
        assert server.client._stranger_size == 0
        server.sessions[0].user_id = None
        assert await peer.say(b"hello") == b"hello"
        assert 0 < server.client._stranger_size < 10_000


async def test_what_is_kept_for_a_gap_has_a_limit(certificate: Certificate, caplog: pytest.LogCaptureFixture) -> None:
    """The library keeps it, outside the memory for requests."""
    async with one(certificate) as (server, peer), attacking(server, is_user=True) as attacker:
        pieces = [stream(4, start + 1, b"x" * 1000) for start in range(8, WINDOW_SIZE + 1000, 1000)]
        with one_line(caplog, "StreamReceiveLimit"):
            await attacker.send(*pieces)
            await until_cut_off(attacker)
        assert await peer.say(b"still here") == b"still here"


async def test_streams_that_are_begun_and_given_up_leave_nothing(certificate: Certificate) -> None:
    async with one(certificate) as (server, peer):
        for _ in range(100):
            streams = [peer.begin(request(b"x" * 1000)[:500]) for _ in range(20)]
            for each in streams:
                peer._quic.reset_stream(each, 0)
            peer.transmit()
            assert await peer.say(b"between") == b"between"
        async with asyncio.timeout(GRACE):
            while server.client.requests._streams:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        assert server.client.requests.size == server.services.memory.size == 0


async def test_streams_that_are_begun_and_not_finished_have_a_deadline(certificate: Certificate) -> None:
    async with one(certificate, ConnectionSettings(frame_deadline=SECOND)) as (server, peer):
        client = server.client
        async with connected(server) as other:
            assert await other.say(b"login") == b"login"
            for _ in range(99):
                peer.begin(request(b"x" * 1000)[:500])
            async with asyncio.timeout(GRACE):
                while len(client.requests._streams) < 99:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0)
            assert await other.say(b"meanwhile") == b"meanwhile"
            for _ in range(2):
                server.clock.advance(SECOND + 1)
                server.connections.enforce_deadlines()
            await server.until(lambda: len(server.closed) == 1)
            assert await other.say(b"afterwards") == b"afterwards"
            assert server.services.memory.size == 0


# --- handshakes ---


class Raw:
    """A UDP socket of the attacker, and the first flight of a client that has proven its address."""

    def __init__(self, server: QuicEcho) -> None:
        self._address = ("127.0.0.1", server.port)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.connect(self._address)

    async def flight(self) -> list[bytes]:
        quic = QuicConnection(configuration=trusting())
        quic.connect(self._address, now=0.0)
        for data, _ in quic.datagrams_to_send(now=0.0):
            self.socket.send(data)
        answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.socket, 2000), GRACE)
        quic.receive_datagram(answer, self._address, now=0.1)
        return [data for data, _ in quic.datagrams_to_send(now=0.1)]


async def test_handshakes_that_never_end_have_places_and_a_deadline(certificate: Certificate) -> None:
    settings = ConnectionSettings(handshake_deadline=SECOND)
    async with serving(QuicEcho(certificate, settings, 20)) as server, connected(server) as user:
        assert await user.say(b"login") == b"login"
        process = Process(os.getpid())
        descriptors = process.descriptor_count
        for _ in range(100):
            raw = Raw(server)
            for data in await raw.flight():
                raw.socket.send(data)
            raw.socket.close()
            assert server.connections.count <= 20
        async with connected(server) as other:
            assert await other.say(b"login") == b"login"
            async with asyncio.timeout(GRACE):
                while server.connections.count > 2:  # noqa: ASYNC110 - the deadline passes
                    await asyncio.sleep(0)
            assert await user.say(b"still here") == await other.say(b"still here") == b"still here"
            # Of the test's own client, and of the directory that is being listed.
            assert process.descriptor_count <= descriptors + 2


async def test_a_connection_that_is_over_is_not_kept_for_its_handshake(certificate: Certificate) -> None:
    async with serving(QuicEcho(certificate, ConnectionSettings(handshake_deadline=60 * SECOND))) as server:
        async with connected(server) as peer:
            await peer.say(b"hello")
            client = server.client
            assert client._handshake_timer is None
        await server.until(lambda: len(server.closed) == 1)
        raw = Raw(server)
        for data in await raw.flight():
            raw.socket.send(data)
        async with asyncio.timeout(GRACE):
            while not server.connections.count:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        client = server.client
        client.abort()
        async with asyncio.timeout(GRACE):
            while not client._is_lost:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        assert client._handshake_timer is None
        raw.socket.close()


async def test_first_packets_that_are_damaged_are_dropped_in_silence(
    certificate: Certificate, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    source = random.Random(seed)
    async with serving(QuicEcho(certificate, ConnectionSettings(), 20)) as server, connected(server) as user:
        assert await user.say(b"login") == b"login"
        raw = Raw(server)
        flight: list[bytes] = []
        for number in range(500):
            if number % 20 == 0:
                flight = await raw.flight()
            for data in map(bytearray, flight):
                for _ in range(source.choice((1, 1, 2, 50))):
                    data[source.randrange(min(len(data), source.choice((7, 60, 1200))))] = source.randrange(256)
                raw.socket.send(data if source.random() < 0.9 else data[: source.randrange(len(data))])
            for _ in range(3):
                await asyncio.sleep(0)
        raw.socket.close()
        assert await user.say(b"still here") == b"still here"
        assert server.connections.count <= 20
    assert not failures
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
