"""QUIC as a carrier, with the client of the same library: one stream per request."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from qh3.asyncio.client import connect
from qh3.asyncio.protocol import QuicConnectionProtocol
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection
from qh3.quic.events import ConnectionTerminated, QuicEvent

from courser.model.messaging import Transport
from courser.server.certificates import Certificate
from courser.server.configuration.settings import TlsSettings
from courser.storage.watched_clock import SystemClock
from courser.transports.quic import REPLY_SIZE_MAX, QuicClient, QuicListener, QuicServices
from courser.transports.quic_retry import RetryTokens
from courser.transports.settings import ConnectionSettings, QuicSettings
from tests.fakes.clocks import ManualClock
from tests.transports.echo import frame
from tests.transports.tcp_servers import GRACE, MIB, SECOND, NumberedSessions, Server


class QuicEcho(Server):
    """The echo server, over QUIC."""

    def __init__(self, certificate: Certificate, settings: ConnectionSettings, count_max: int = 100) -> None:
        super().__init__(settings, count_max)
        shared = QuicServices(self.services, self.connections, NumberedSessions(self), os.urandom)
        self.quic = QuicListener(QuicSettings(port=0), shared, certificate.pem, certificate.key_pem)

    @property
    def client(self) -> QuicClient:
        """The server's end of the only connection."""
        (connection,) = self.connections
        assert isinstance(connection, QuicClient)
        return connection


class Peer(QuicConnectionProtocol):
    """The client's end of a connection."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.reason: str | None = None
        """Why the server has closed it."""
        self.is_deaf = False
        """Whether it lets datagrams fall."""

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, ConnectionTerminated):
            self.reason = event.reason_phrase
        super().quic_event_received(event)

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        if not self.is_deaf:
            super().datagram_received(data, addr)

    def datagrams_received(self, data: list[bytes], addr: Any) -> None:
        # The library's own transport hands over several at a time.
        if not self.is_deaf:
            super().datagrams_received(data, addr)

    async def send(self, data: bytes) -> asyncio.StreamReader:
        """Send all of a stream."""
        reader, writer = await self.create_stream()
        writer.write(data)
        writer.write_eof()
        return reader

    def begin(self, data: bytes) -> int:
        """Send the beginning of a stream; return its number."""
        stream = self._quic.get_next_available_stream_id()
        self._quic.send_stream_data(stream, data)
        self.transmit()
        return stream

    async def say(self, text: bytes) -> bytes:
        reader = await self.send(frame(text))
        return (await asyncio.wait_for(reader.read(), GRACE))[1:-1]

    async def end(self) -> str | None:
        await asyncio.wait_for(self.wait_closed(), GRACE)
        return self.reason


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    settings = TlsSettings(certificate_file=None, key_file=None, is_self_signed=True, table="quic.certificate")
    return Certificate(settings, "localhost", SystemClock())


@asynccontextmanager
async def serving(server: QuicEcho) -> AsyncIterator[QuicEcho]:
    _, server.port = await server.quic.start()
    try:
        yield server
    finally:
        server.gate.set()
        server.quic.close()
        await server.connections.say_goodbye(GRACE)
        server.quic.release()


def trusting() -> QuicConfiguration:
    """As the SDKs do by default: no authority vouches for a certificate that was made at the start."""
    return QuicConfiguration(verify_mode=ssl.CERT_NONE, server_name="localhost")


@asynccontextmanager
async def connected(server: QuicEcho) -> AsyncIterator[Peer]:
    async with connect("127.0.0.1", server.port, configuration=trusting(), create_protocol=Peer) as peer:
        assert isinstance(peer, Peer)
        yield peer


@asynccontextmanager
async def one(
    certificate: Certificate, settings: ConnectionSettings | None = None, **options: int
) -> AsyncIterator[tuple[QuicEcho, Peer]]:
    """A server and a client that has logged in."""
    echo = QuicEcho(certificate, settings or ConnectionSettings(), **options)
    async with serving(echo) as server, connected(server) as peer:
        assert await peer.say(b"login") == b"login"
        yield server, peer


# --- what works ---------------------------------------------------------------------------------------


async def test_every_request_and_its_reply_have_a_stream(certificate: Certificate) -> None:
    async with one(certificate) as (server, peer):
        for size in (0, 1, 1200, 65_535, 2 * MIB):
            assert await peer.say(b"x" * size) == b"x" * size
        assert server.sessions[0].transport is Transport.QUIC
        assert server.sessions[0].address.startswith("127.0.0.1:")
        assert await peer.say(b"much%d" % (9 * MIB)) == bytes(9 * MIB)
        assert server.client.requests.size == 0
        peer.close()
        await server.until(lambda: len(server.closed) == 1)
        assert server.connections.count == 0


async def test_streams_that_overlap_are_answered_each_on_its_own(certificate: Certificate) -> None:
    async with one(certificate) as (_, peer):
        texts = [b"%03d" % number * 1000 for number in range(50)]
        assert await asyncio.gather(*map(peer.say, texts)) == texts


async def test_a_stream_that_is_complete_does_not_wait_for_one_that_is_not(certificate: Certificate) -> None:
    async with one(certificate) as (_, peer):
        reader, writer = await peer.create_stream()
        writer.write(frame(b"slow and steady")[:5])
        assert await peer.say(b"fast") == b"fast"
        writer.write(frame(b"slow and steady")[5:])
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), GRACE) == b"<slow and steady>"


async def test_requests_wait_for_the_one_before(certificate: Certificate) -> None:
    async with one(certificate) as (server, peer):
        waiting = await peer.send(frame(b"wait"))
        next_one = await peer.send(frame(b"next"))
        async with asyncio.timeout(GRACE):
            while not server.client.requests.waiting_count:  # noqa: ASYNC110 - it is about to
                await asyncio.sleep(0)
        server.gate.set()
        assert await asyncio.wait_for(waiting.read(), GRACE) == b"<wait>"
        assert await asyncio.wait_for(next_one.read(), GRACE) == b"<next>"


async def test_an_empty_stream_gets_an_empty_answer(certificate: Certificate) -> None:
    async with one(certificate) as (_, peer):
        reader = await peer.send(b"")
        assert await asyncio.wait_for(reader.read(), GRACE) == b""
        assert await peer.say(b"still here") == b"still here"


async def test_a_stream_that_is_given_up_is_forgotten(certificate: Certificate) -> None:
    async with one(certificate) as (server, peer):
        stream = peer.begin(frame(b"x" * 1000)[:500])
        async with asyncio.timeout(GRACE):
            while not server.client.requests.size:  # noqa: ASYNC110 - it is about to
                await asyncio.sleep(0)
        peer._quic.reset_stream(stream, 0)
        peer.transmit()
        assert await peer.say(b"still here") == b"still here"
        assert server.services.memory.size == 0


async def test_new_connections_get_a_new_certificate(certificate: Certificate) -> None:
    async with one(certificate) as (server, peer):
        settings = TlsSettings(certificate_file=None, key_file=None, is_self_signed=True)
        other = Certificate(settings, "localhost", SystemClock())
        server.quic.use_certificate(other.pem, other.key_pem)
        async with connected(server) as later:
            found = [each._quic.get_peercert() for each in (peer, later)]
            assert [each and each.public_bytes() for each in found] == [
                ssl.PEM_cert_to_DER_cert(pem.decode()) for pem in (certificate.pem, other.pem)
            ]
            assert await later.say(b"hello") == b"hello"
        assert await peer.say(b"still here") == b"still here"


# --- what is refused ----------------------------------------------------------------------------------


async def test_a_reply_that_is_too_large_for_clients_is_an_error(certificate: Certificate) -> None:
    async with one(certificate) as (_, peer):
        reader = await peer.send(frame(b"much%d" % REPLY_SIZE_MAX))
        answer = await asyncio.wait_for(reader.read(), GRACE)
        assert answer.startswith(b"failed: ")
        assert b"10000002 bytes, more than the 10000000" in answer
        assert len(await peer.say(b"much%d" % (REPLY_SIZE_MAX - 2))) == REPLY_SIZE_MAX - 2


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frame(b"one") + frame(b"two"), "a stream with more than one request"),
        (frame(b"one") + b"\0", "a stream with more than one request"),
        (frame(b"half")[:-2], "a stream ended in the middle of a request"),
        (b"\1", "a stream ended in the middle of a request"),
        (frame(b"x" * 200_000), "a request of more than 100000 bytes"),
        (b"!", "it begins with an exclamation mark"),
    ],
)
async def test_streams_that_no_client_may_send_end_the_connection(
    certificate: Certificate, data: bytes, reason: str
) -> None:
    async with one(certificate, ConnectionSettings(frame_size_max=100_000)) as (server, peer):
        await peer.send(data)
        assert await peer.end() == reason
        await server.until(lambda: len(server.closed) == 1)
        assert server.services.memory.size == 0
        async with connected(server) as other:
            assert await other.say(b"hello") == b"hello"


async def test_nothing_of_a_stream_with_two_requests_is_carried_out(certificate: Certificate) -> None:
    async with serving(QuicEcho(certificate, ConnectionSettings())) as server, connected(server) as peer:
        await peer.send(frame(b"login") + frame(b"login"))
        assert await peer.end() == "a stream with more than one request"
        assert server.sessions[0].user_id is None


async def test_the_answer_to_a_refused_request_arrives_before_the_end(certificate: Certificate) -> None:
    async with one(certificate) as (_, peer):
        reader = await peer.send(b"!")
        assert await asyncio.wait_for(reader.read(), GRACE) == b"no!"
        assert await peer.end() == "it begins with an exclamation mark"


async def test_strangers_may_send_little(certificate: Certificate) -> None:
    settings = ConnectionSettings(login_frame_size_max=1024)
    async with serving(QuicEcho(certificate, settings)) as server, connected(server) as peer:
        for _ in range(3):
            peer.begin(frame(b"x" * 1000)[:500])
        assert await peer.end() == "more than 1024 bytes before a login"
        assert server.services.memory.size == 0


async def test_streams_share_the_budget_of_all_transports_and_who_exceeds_it_is_refused(
    certificate: Certificate,
) -> None:
    settings = ConnectionSettings(request_memory=MIB)
    async with one(certificate, settings) as (server, peer), connected(server) as other:
        assert await other.say(b"login") == b"login"
        held = frame(b"x" * 900_000)
        other.begin(held[:700_000])
        async with asyncio.timeout(GRACE):
            while server.services.memory.size < 700_000:  # noqa: ASYNC110 - it is about to
                await asyncio.sleep(0)
        await peer.send(frame(b"x" * 900_000))
        assert await peer.end() == "the server is busy with large requests; try again"
        async with asyncio.timeout(GRACE):
            while server.services.memory.size > 800_000:  # noqa: ASYNC110 - it is about to
                await asyncio.sleep(0)
        assert await other.say(b"still here") == b"still here"
    assert server.services.memory.size == 0


async def test_a_slow_sender_makes_room_when_others_wait_for_memory(certificate: Certificate) -> None:
    settings = ConnectionSettings(request_memory=MIB, frame_deadline=100 * SECOND)
    async with one(certificate, settings) as (server, peer):
        peer.begin(frame(b"x" * 900_000)[:800_000])
        async with asyncio.timeout(GRACE):
            while server.client.requests.size < 800_000:  # noqa: ASYNC110 - it is about to
                await asyncio.sleep(0)
        server.clock.advance(10 * SECOND)
        assert server.client.reserved_by_sender(server.clock.monotonic()) == (80_000, server.services.memory.size)


async def test_other_datagrams_are_ignored(certificate: Certificate) -> None:
    async with one(certificate) as (server, peer):
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=("127.0.0.1", server.port)
        )
        for nonsense in (
            b"",
            b"\0",
            b"GET / HTTP/1.1\r\n\r\n",
            bytes(1500),
            b"\xff" * 1500,
            b"\xc0\0\0\0\1" + bytes(1400),
        ):
            transport.sendto(nonsense)
        assert await peer.say(b"still here") == b"still here"
        transport.close()


# --- limits -------------------------------------------------------------------------------------------


async def test_an_address_takes_no_place_before_it_is_proven(certificate: Certificate) -> None:
    async with serving(QuicEcho(certificate, ConnectionSettings())) as server:
        quic = QuicConnection(configuration=trusting())
        quic.connect(("127.0.0.1", server.port), now=0.0)
        loop = asyncio.get_running_loop()
        answers: asyncio.Queue[bytes] = asyncio.Queue()

        class Collecting(asyncio.DatagramProtocol):
            def datagram_received(self, data: bytes, addr: object) -> None:
                answers.put_nowait(data)

        transport, _ = await loop.create_datagram_endpoint(Collecting, remote_addr=("127.0.0.1", server.port))
        for data, _ in quic.datagrams_to_send(now=0.0):
            transport.sendto(data)
        answer = await asyncio.wait_for(answers.get(), GRACE)
        assert answer[0] & 0xF0 == 0xF0, "a Retry packet"
        assert len(answer) < 200, "much less than was received: nobody can be flooded with answers"
        assert server.connections.count == 0
        transport.close()


def test_a_token_is_valid_for_its_address_and_for_a_while() -> None:
    clock = ManualClock()
    tokens = RetryTokens(clock, os.urandom)
    token = tokens.create_token(("127.0.0.1", 5), b"original", b"retry id")
    assert tokens.validate_token(("127.0.0.1", 5), token) == (b"original", b"retry id")
    others = [(("127.0.0.1", 6), token), (("127.0.0.2", 5), token), (("127.0.0.1", 5), token[:-1] + b"x")]
    for address, other in [*others, (("127.0.0.1", 5), b""), (("127.0.0.1", 5), b"x" * 300)]:
        with pytest.raises(ValueError, match="not made here"):
            tokens.validate_token(address, other)
    clock.advance(31 * SECOND)
    with pytest.raises(ValueError, match="expired"):
        tokens.validate_token(("127.0.0.1", 5), token)


async def test_more_connections_than_allowed_are_turned_away(certificate: Certificate) -> None:
    async with one(certificate, count_max=1) as (server, peer):
        transport, other = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: Peer(QuicConnection(configuration=trusting())), local_addr=("127.0.0.1", 0)
        )
        other.connect(("127.0.0.1", server.port))
        async with asyncio.timeout(GRACE):
            while not server.connections.turned_away_count:  # noqa: ASYNC110 - it is about to
                await asyncio.sleep(0)
        transport.close()
        assert await peer.say(b"still here") == b"still here"
        assert server.connections.count == 1


async def test_strangers_make_room(certificate: Certificate) -> None:
    async with (
        serving(QuicEcho(certificate, ConnectionSettings(), 1)) as server,
        connected(server) as first,
        connected(server) as second,
    ):
        assert await second.say(b"login") == b"login"
        await first.end()
        assert server.connections.count == 1


async def test_who_does_not_finish_a_request_is_cut_off_in_time(certificate: Certificate) -> None:
    async with one(certificate, ConnectionSettings(frame_deadline=SECOND)) as (server, peer):
        peer.begin(frame(b"x" * 1000)[:500])
        async with asyncio.timeout(GRACE):
            while not server.client.requests.size:  # noqa: ASYNC110 - it is about to
                await asyncio.sleep(0)
        for _ in range(2):
            server.connections.enforce_deadlines()
            server.clock.advance(SECOND + 1)
        server.connections.enforce_deadlines()
        await server.until(lambda: len(server.closed) == 1)
        await peer.end()


async def test_who_does_not_read_is_cut_off_in_time_and_others_are_served(certificate: Certificate) -> None:
    async with one(certificate, ConnectionSettings(send_deadline=SECOND)) as (server, stuck):
        stuck.is_deaf = True
        await stuck.send(frame(b"much%d" % (9 * MIB)))
        await server.until_unread()
        assert server.client.unsent_size > 8 * MIB
        assert server.client._quic.get_send_buffer_size() <= MIB, "the library copies what it has"
        async with connected(server) as other:
            assert await other.say(b"hello") == b"hello"
        for _ in range(2):
            server.clock.advance(SECOND + 1)
            server.connections.enforce_deadlines()
        await server.until(lambda: server.sessions[0] in server.closed)
        assert server.memory.ledger.size == 0


async def test_a_stop_says_why(certificate: Certificate) -> None:
    async with one(certificate) as (server, peer):
        server.quic.close()
        await server.connections.say_goodbye(GRACE)
        assert await peer.end() == "the server is stopping"
