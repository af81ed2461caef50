"""Connections over TLS: handshakes, deadlines and stops."""

import asyncio
import socket
import ssl

import pytest

from courser.server.certificates import Certificate
from courser.server.configuration.settings import TlsSettings
from courser.storage.watched_clock import SystemClock
from courser.transports.settings import ConnectionSettings
from courser.transports.tcp_connection import TcpConnection
from tests.transports.echo import frame
from tests.transports.tcp_servers import GRACE, MIB, SECOND, Server, serving


async def test_a_client_that_stops_sending_still_gets_its_answers() -> None:
    async with serving() as server:
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(connection, frame(b"one") + frame(b"two"))
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while part := await asyncio.wait_for(loop.sock_recv(connection, 1000), GRACE):
            received += part
        assert received == b"<one><two>"
        connection.close()


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    """One that was made for these tests."""
    settings = TlsSettings(certificate_file=None, key_file=None, is_self_signed=True)
    return Certificate(settings, "localhost", SystemClock())


@pytest.fixture
def trusting(certificate: Certificate) -> ssl.SSLContext:
    """A client's side that trusts it."""
    return ssl.create_default_context(cadata=certificate.pem.decode())


async def connection_count_is(server: Server, count: int) -> None:
    async with asyncio.timeout(GRACE):
        while server.connections.count != count:  # noqa: ASYNC110 - it is about to
            await asyncio.sleep(0)


async def test_over_tls_connections_count_before_their_handshake(
    certificate: Certificate, trusting: ssl.SSLContext
) -> None:
    async with serving(connection_count_max=2, tls=certificate.context) as server:
        first, silent = await server.connect(trusting), await server.connect()
        await first.say(b"login")
        await connection_count_is(server, 2)
        second = await server.connect(trusting)
        assert await silent.end() == b"", "a handshake makes room"
        assert await second.say(b"login") == b"login"
        assert await (await server.connect()).end() == b"", "two have logged in"
        assert server.connections.turned_away_count == 1
        assert await first.say(b"still here") == b"still here"
        first.writer.transport.abort()
        await connection_count_is(server, 1)
        assert await (await server.connect(trusting)).say(b"at last") == b"at last"
        assert server.connections.count == 2


async def test_over_tls_a_reply_that_is_not_read_counts_and_has_a_deadline(
    certificate: Certificate, trusting: ssl.SSLContext
) -> None:
    async with serving(ConnectionSettings(send_deadline=SECOND), tls=certificate.context) as server:
        stuck, other = await server.connect(trusting), await server.connect(trusting)
        await stuck.say(b"login")
        await other.say(b"login")
        stuck.reader._transport.pause_reading()  # type: ignore[attr-defined]
        stuck.writer.write(frame(b"much%d" % (32 * MIB)))
        for _ in range(20):
            await other.say(b"a round trip")
        assert server.memory.ledger.size > 16 * MIB, "the kernel does not take so much"
        assert server.memory.ledger.size == server.memory.size_of(server.sessions[0])
        stuck_connection = next(each for each in server.connections if each.loop.session is server.sessions[0])  # type: ignore[union-attr]
        assert stuck_connection.loop is not None
        assert stuck_connection.loop.unsent_since is not None
        for _ in range(2):
            server.clock.advance(SECOND + 1)
            server.connections.enforce_deadlines()
        await server.until(lambda: server.sessions[0] in server.closed)
        assert server.memory.ledger.size == 0


async def test_over_tls_large_replies_arrive_whole_and_in_order(
    certificate: Certificate, trusting: ssl.SSLContext
) -> None:
    async with serving(tls=certificate.context) as server:
        client = await server.connect(trusting)
        await client.say(b"login")
        client.writer.write(frame(b"much%d" % (8 * MIB)) + frame(b"next") + frame(b"much100000") + frame(b"last"))
        expected = b"<" + bytes(8 * MIB) + b"><next><" + bytes(100_000) + b"><last>"
        assert await asyncio.wait_for(client.reader.readexactly(len(expected)), GRACE) == expected
        client.writer.write(frame(b"much%d" % (8 * MIB)))
        assert len(await asyncio.wait_for(client.reader.readuntil(b">"), GRACE)) == 8 * MIB + 2
        assert server.memory.ledger.size == 0


async def test_over_tls_the_last_reply_is_sent_whole_before_a_stop(
    certificate: Certificate, trusting: ssl.SSLContext
) -> None:
    async with serving(tls=certificate.context) as server:
        client = await server.connect(trusting)
        await client.say(b"login")
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.write(frame(b"much%d" % (32 * MIB)))
        async with asyncio.timeout(GRACE):
            while not server.memory.ledger.size:  # noqa: ASYNC110 - it is about to
                await asyncio.sleep(0)
        stopping = asyncio.ensure_future(server.stop(GRACE))
        await asyncio.sleep(0)
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await client.end()) == 32 * MIB + 2
        await stopping


async def test_over_tls_nonsense_in_place_of_a_handshake_ends_a_connection_and_no_other(
    certificate: Certificate, trusting: ssl.SSLContext
) -> None:
    async with serving(tls=certificate.context) as server:
        good, bad = await server.connect(trusting), await server.connect()
        bad.writer.write(frame(b"hello, this is no TLS"))
        await bad.end()
        await connection_count_is(server, 1)
        assert await good.say(b"still here") == b"still here"


async def test_over_tls_a_stop_ends_handshakes_too(certificate: Certificate) -> None:
    async with serving(tls=certificate.context) as server:
        silent = await server.connect()
        await connection_count_is(server, 1)
        await server.stop(GRACE)
        assert await silent.end() == b""
        with pytest.raises(ConnectionRefusedError):
            await server.connect()


async def test_over_tls_a_reply_goes_out_while_nothing_more_can_be_received(
    certificate: Certificate, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused, pause = asyncio.Event(), TcpConnection.pause

    def note_pause(connection: TcpConnection) -> None:
        pause(connection)
        paused.set()

    monkeypatch.setattr(TcpConnection, "pause", note_pause)
    async with serving(tls=certificate.context) as server:
        client = await server.connect(trusting)
        ahead = [b"%04d" % number + bytes(1000) for number in range(200)]
        client.writer.write(frame(b"wait") + b"".join(map(frame, ahead)))
        # The first request is in a task, and the requests behind it fill the buffer: the connection is not read from.
        await asyncio.wait_for(paused.wait(), GRACE)
        server.gate.set()
        for text in (b"wait", *ahead):
            answer = await asyncio.wait_for(client.reader.readexactly(len(text) + 2), GRACE)
            assert answer == b"<" + text + b">"
