import asyncio
import socket
import ssl
import struct
from contextlib import closing

import pytest

from courser.model.messaging import Transport
from courser.server.certificates import Certificate
from courser.server.configuration.settings import TlsSettings
from courser.storage.local_clock import SystemClock
from courser.transports.settings import ConnectionSettings, SocketSettings
from courser.transports.tcp_connection import TcpConnection
from tests.transports.echo import frame
from tests.transports.echo_server import GRACE, MIB, SECOND, Client, Server, serving


async def test_requests_are_answered_and_the_session_knows_the_address() -> None:
    async with serving() as server:
        client = await server.connect()
        assert await client.say(b"hello") == b"hello"
        host, port = client.writer.get_extra_info("sockname")
        assert server.sessions[0].address == f"{host}:{port}"
        assert server.sessions[0].transport is Transport.TCP


async def test_a_connection_that_goes_ends_its_session() -> None:
    async with serving() as server:
        client = await server.connect()
        await client.say(b"hello")
        client.writer.close()
        await server.until(lambda: len(server.closed) == 1)
        assert server.connections.count == 0


async def test_more_connections_than_allowed_are_turned_away_and_the_others_are_served() -> None:
    async with serving(connection_count_max=2) as server:
        first, second = await server.connect(), await server.connect()
        assert await first.say(b"login") == b"login"
        assert await second.say(b"login") == b"login"
        third = await server.connect()
        assert await third.end() == b""
        assert server.connections.turned_away_count == 1
        assert await first.say(b"still here") == b"still here"


async def socket_options(options: SocketSettings) -> dict[str, int]:
    """What the kernel says of the server's end of a connection."""
    async with serving(options=options) as server:
        client = await server.connect()
        await client.say(b"hello")
        (connection,) = server.connections
        assert isinstance(connection, TcpConnection)
        assert connection._transport is not None
        theirs = connection._transport.get_extra_info("socket")
        linger = theirs.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
        return {
            "nodelay": theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY),
            "keepalive": theirs.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            # The kernel doubles what it is asked for, to have room for its own records.
            "receive": theirs.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2,
            "send": theirs.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2,
            "linger": struct.unpack("ii", linger)[1],
        }


async def test_the_kernel_is_told_what_the_operator_set_about_sockets() -> None:
    usual = await socket_options(SocketSettings())
    assert (usual["nodelay"], usual["keepalive"], usual["linger"]) == (1, 0, 0)
    options = SocketSettings(
        nodelay=False, keepalive=True, receive_buffer_size=50_000, send_buffer_size=60_000, linger=3
    )
    assert await socket_options(options) == {
        "nodelay": 0,
        "keepalive": 1,
        "receive": 50_000,
        "send": 60_000,
        "linger": 3,
    }


async def test_who_does_not_log_in_is_cut_off_in_time_whatever_it_sends() -> None:
    async with serving(ConnectionSettings(login_deadline=30 * SECOND)) as server:
        silent, pinging, member = await server.connect(), await server.connect(), await server.connect()
        await member.say(b"login")
        for _ in range(3):
            await pinging.say(b"ping")
            server.clock.advance(10 * SECOND)
            server.connections.enforce_deadlines()
            assert server.connections.cut_off_count == 0
        await pinging.say(b"ping")
        server.clock.advance(1)
        server.connections.enforce_deadlines()
        assert await silent.end() == b""
        assert await pinging.end() == b""
        assert await member.say(b"ping") == b"ping"
        assert server.connections.cut_off_count == 2


async def test_who_logs_out_has_as_long_to_log_in_again() -> None:
    async with serving(ConnectionSettings(login_deadline=30 * SECOND)) as server:
        client = await server.connect()
        await client.say(b"login")
        server.connections.enforce_deadlines()
        server.clock.advance(100 * SECOND)
        server.sessions[0].user_id = None
        for _ in range(2):
            server.connections.enforce_deadlines()
            server.clock.advance(20 * SECOND)
        assert await client.say(b"still here") == b"still here"
        server.connections.enforce_deadlines()
        assert await client.end() == b""


async def test_strangers_make_room_for_whoever_comes_and_the_oldest_go_first() -> None:
    async with serving(connection_count_max=4) as server:
        strangers = [await server.connect() for _ in range(4)]
        for stranger in strangers:
            await stranger.say(b"ping")
        members = []
        for _ in range(4):
            members.append(await server.connect())
            assert await members[-1].say(b"login") == b"login"
        for stranger in strangers:
            assert await stranger.end() == b""
        assert server.connections.turned_away_count == 0
        assert await (await server.connect()).end() == b"", "those who have logged in make room for nobody"
        assert server.connections.turned_away_count == 1
        for member in members:
            assert await member.say(b"still here") == b"still here"


async def test_all_places_taken_by_strangers_that_ping_and_every_login_succeeds() -> None:
    async with serving(connection_count_max=40) as server:
        pinging = [await server.connect() for _ in range(40)]
        for stranger in pinging:
            await stranger.say(b"ping")
        for number in range(17):
            member = await server.connect()
            assert await member.say(b"login") == b"login"
            # The stranger that had to go comes back at once.
            pinging.append(await server.connect())
            await pinging[-1].say(b"ping")
            assert server.connections.count == 40, number
        assert server.connections.turned_away_count == 0
        assert len([session for session in server.sessions if session.user_id is not None]) == 17


async def test_who_is_logging_in_is_sent_away_last() -> None:
    async with serving(connection_count_max=3) as server:
        waiting, idle, newer = [await server.connect() for _ in range(3)]
        waiting.writer.write(frame(b"wait"))
        await idle.say(b"ping")
        await newer.say(b"ping")
        await (await server.connect()).say(b"login")
        assert await idle.end() == b""
        await (await server.connect()).say(b"login")
        assert await newer.end() == b""
        server.gate.set()
        assert await waiting.reader.readuntil(b">") == b"<wait>"
        waiting.writer.write(frame(b"wait"))
        await (await server.connect()).say(b"login")
        assert server.connections.turned_away_count == 0


async def test_who_is_logged_in_may_be_silent_for_ever_unless_the_operator_sets_a_deadline() -> None:
    for settings, is_cut_off in ((ConnectionSettings(), False), (ConnectionSettings(idle_deadline=60 * SECOND), True)):
        async with serving(settings) as server:
            client = await server.connect()
            await client.say(b"login")
            server.clock.advance(3600 * SECOND)
            server.connections.enforce_deadlines()
            assert server.connections.cut_off_count == is_cut_off


async def test_who_sends_a_frame_byte_by_byte_is_cut_off() -> None:
    settings = ConnectionSettings(frame_deadline=30 * SECOND)
    async with serving(settings) as server:
        slow, fast = await server.connect(), await server.connect()
        await slow.say(b"login")
        await fast.say(b"login")
        slow.writer.write(frame(b"x" * 100)[:50])
        await fast.say(b"hello")
        while server.connections.cut_off_count == 0:
            server.clock.advance(10 * SECOND)
            slow.writer.write(b"x")
            await fast.say(b"hello")
            server.connections.enforce_deadlines()
            assert server.clock.monotonic() <= 60 * SECOND
        assert server.clock.monotonic() > 30 * SECOND


async def test_a_large_frame_gets_the_time_that_its_size_needs() -> None:
    settings = ConnectionSettings(frame_deadline=1 * SECOND, frame_rate_min=1_000_000)
    async with serving(settings) as server:
        client, other = await server.connect(), await server.connect()
        await client.say(b"login")
        request = frame(b"x" * 10_000_000)
        for start in range(0, len(request), 1_000_000):
            client.writer.write(request[start : start + 1_000_000])
            await client.writer.drain()
            await other.say(b"a round trip")
            server.clock.advance(SECOND)
            server.connections.enforce_deadlines()
        assert len(await asyncio.wait_for(client.reader.readuntil(b">"), GRACE)) == 10_000_002


async def test_who_stops_in_the_middle_of_a_large_frame_is_cut_off_soon() -> None:
    settings = ConnectionSettings(frame_deadline=1 * SECOND, frame_rate_min=1_000_000)
    async with serving(settings) as server:
        client, other = await server.connect(), await server.connect()
        await client.say(b"login")
        client.writer.write(frame(b"x" * 10_000_000)[:1_000_000])
        await client.writer.drain()
        await other.say(b"a round trip")
        server.clock.advance(2 * SECOND + 100_000)
        server.connections.enforce_deadlines()
        assert await client.end() == b""


async def test_who_sends_much_and_then_stops_is_cut_off_as_soon_as_anybody_else() -> None:
    settings = ConnectionSettings(frame_deadline=1 * SECOND, frame_rate_min=100_000)
    async with serving(settings) as server:
        client, other = await server.connect(), await server.connect()
        await client.say(b"login")
        client.writer.write(frame(b"x" * 10_000_000)[:5_000_000])
        await client.writer.drain()
        await other.say(b"a round trip")
        server.connections.enforce_deadlines()
        server.clock.advance(1 * SECOND + 1)
        server.connections.enforce_deadlines()
        assert await client.end() == b"", "50 seconds at the minimum rate, which are no credit"


async def hold(server: Server, size: int) -> Client:
    """Somebody who has sent so many bytes of a large request."""
    client = await server.connect()
    await client.say(b"login")
    client.writer.write(frame(b"x" * 8_000_000)[:size])
    await client.writer.drain()
    for _ in range(5):
        await server.clients[0].say(b"a round trip")
    return client


async def test_when_others_wait_for_memory_slow_senders_are_cut_off_and_who_waits_is_not_to_blame() -> None:
    settings = ConnectionSettings(frame_deadline=30 * SECOND, frame_rate_min=1_000, request_memory=3_000_000)
    async with serving(settings) as server:
        other = await server.connect()
        await other.say(b"login")
        slow = [await hold(server, 1_500_000), await hold(server, 3_000_000)]
        waiting = await hold(server, 1_500_000)
        for _ in range(30):
            server.clock.advance(40 * SECOND)
            if server.connections.cut_off_count:
                break
            for client in slow:
                # Above the minimum, and below what is fair when others wait.
                client.writer.write(b"x" * 60_000)
            await other.say(b"a round trip")
            server.connections.enforce_deadlines()
        assert await slow[0].end() == b"", "the slowest one"
        server.connections.enforce_deadlines()
        waiting.writer.write(frame(b"x" * 8_000_000)[1_500_000:])
        server.connections.enforce_deadlines()
        while server.connections.cut_off_count < 2:
            server.clock.advance(2 * SECOND)
            await other.say(b"a round trip")
            server.connections.enforce_deadlines()
        assert await slow[1].end() == b""
        assert len(await asyncio.wait_for(waiting.reader.readuntil(b">"), GRACE)) == 8_000_002


async def test_who_does_not_read_a_reply_is_cut_off_in_time() -> None:
    async with serving(ConnectionSettings(send_deadline=60 * SECOND)) as server:
        stuck, other = await server.connect(), await server.connect()
        await stuck.say(b"login")
        await other.say(b"login")
        stuck.reader._transport.pause_reading()  # type: ignore[attr-defined]
        stuck.writer.write(frame(b"much%d" % (32 * MIB)))
        await other.say(b"a round trip")
        for _ in range(7):
            server.clock.advance(10 * SECOND)
            await other.say(b"ping")
            server.connections.enforce_deadlines()
        await server.until(lambda: len(server.closed) == 1)
        assert await other.say(b"still here") == b"still here"


class SlowReader:
    """A client that reads no more of a large reply than a test wants it to."""

    def __init__(self, server: Server) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()

    async def ask(self, *texts: bytes) -> None:
        await self._loop.sock_sendall(self._socket, b"".join(map(frame, texts)))

    async def read(self, size: int) -> None:
        while size > 0:
            part = await asyncio.wait_for(self._loop.sock_recv(self._socket, size), GRACE)
            assert part, "it was cut off"
            size -= len(part)

    def close(self) -> None:
        self._socket.close()


LARGE_REPLY = b"much%d" % (96 * MIB)
PART_SIZE = 16 * MIB
"""Far more than the kernel keeps on its way: who has read so much has made room for more."""


async def test_a_large_reply_gets_the_time_that_its_size_needs() -> None:
    settings = ConnectionSettings(send_deadline=1 * SECOND, frame_rate_min=4 * MIB)
    async with serving(settings) as server:
        other = await server.connect()
        await other.say(b"login")
        with closing(SlowReader(server)) as reader:
            await reader.ask(b"login", LARGE_REPLY)
            await other.say(b"a round trip")
            for _ in range(4):
                await reader.read(PART_SIZE)
                await other.say(b"a round trip")
                server.clock.advance(2 * SECOND)
                server.connections.enforce_deadlines()
            assert server.connections.cut_off_count == 0
            server.clock.advance(60 * SECOND)
            server.connections.enforce_deadlines()
            assert server.connections.cut_off_count == 1, "what was read already is no reason to wait for ever"


async def test_who_reads_on_in_a_large_reply_shows_life_and_who_does_not_shows_none() -> None:
    async with serving() as server:
        other = await server.connect()
        with closing(SlowReader(server)) as reader:
            await reader.ask(b"login", LARGE_REPLY)
            await other.say(b"a round trip")
            session = server.sessions[1]
            for _ in range(3):
                await reader.read(PART_SIZE)
                await other.say(b"a round trip")
                server.clock.advance(10 * SECOND)
                server.connections.enforce_deadlines()
                assert session.last_seen == server.clock.monotonic()
            server.clock.advance(10 * SECOND)
            server.connections.enforce_deadlines()
            assert session.last_seen == server.clock.monotonic() - 10 * SECOND


async def test_who_waits_for_an_answer_is_not_silent() -> None:
    async with serving(ConnectionSettings(login_deadline=30 * SECOND, idle_deadline=30 * SECOND)) as server:
        waiting, other = await server.connect(), await server.connect()
        await other.say(b"login")
        waiting.writer.write(frame(b"wait"))
        await other.say(b"a round trip")
        for _ in range(10):
            server.clock.advance(10 * SECOND)
            await other.say(b"a round trip")
            server.connections.enforce_deadlines()
            assert server.sessions[0].last_seen == server.clock.monotonic()
        assert server.sessions[0].user_id is None, "as if it was a login"
        server.gate.set()
        assert await waiting.reader.readuntil(b">") == b"<wait>"
        assert server.connections.cut_off_count == 0


async def test_when_replies_fill_the_memory_those_who_read_most_slowly_go_at_once() -> None:
    settings = ConnectionSettings(reply_memory=70 * MIB)
    async with serving(settings) as server:
        clients = [await server.connect() for _ in range(4)]
        for number, client in enumerate(clients):
            await client.say(b"login")
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            client.writer.write(frame(b"much%d" % (32 * MIB)))
            await (await server.connect()).say(b"a round trip")
            server.clock.advance(SECOND)
            assert server.connections.cut_off_count == max(number - 1, 0), "nobody waits for a patrol"
            assert server.memory.leased_size <= 70 * MIB
        await server.until(lambda: server.sessions[0] in server.closed)


async def test_who_reads_much_and_then_stops_is_cut_off_as_soon_as_anybody_else() -> None:
    settings = ConnectionSettings(send_deadline=2 * SECOND, frame_rate_min=1 * MIB)
    async with serving(settings) as server:
        other = await server.connect()
        await other.say(b"login")
        with closing(SlowReader(server)) as reader:
            await reader.ask(b"login", LARGE_REPLY)
            await other.say(b"a round trip")
            await reader.read(3 * PART_SIZE)
            await other.say(b"a round trip")
            server.connections.enforce_deadlines()
            assert server.connections.cut_off_count == 0
            server.clock.advance(2 * SECOND + 1)
            server.connections.enforce_deadlines()
            assert server.connections.cut_off_count == 1, "48 seconds at the minimum rate, which are no credit"


async def test_a_stop_says_goodbye_to_the_idle_and_answers_the_busy() -> None:
    async with serving() as server:
        idle, busy = await server.connect(), await server.connect()
        await idle.say(b"hello")
        busy.writer.write(frame(b"wait"))
        await idle.say(b"a round trip")
        stopping = asyncio.ensure_future(server.stop(GRACE))
        assert await idle.end() == b"bye"
        server.gate.set()
        assert await busy.end() == b"<wait>"
        await stopping
        with pytest.raises(ConnectionRefusedError):
            await server.connect()


async def test_a_stop_does_not_wait_for_ever() -> None:
    async with serving() as server:
        client = await server.connect()
        client.writer.write(frame(b"wait"))
        await (await server.connect()).say(b"a round trip")
        await server.stop(0.01)
        assert await client.end() == b""


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
        assert server.memory.leased_size > 16 * MIB, "the kernel does not take so much"
        assert server.memory.leased_size == server.memory.size_of(server.sessions[0])
        stuck_connection = next(each for each in server.connections if each.loop.session is server.sessions[0])  # type: ignore[union-attr]
        assert stuck_connection.loop is not None
        assert stuck_connection.loop.unsent_since is not None
        for _ in range(2):
            server.clock.advance(SECOND + 1)
            server.connections.enforce_deadlines()
        await server.until(lambda: server.sessions[0] in server.closed)
        assert server.memory.leased_size == 0


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
        assert server.memory.leased_size == 0


async def test_over_tls_the_last_reply_is_sent_whole_before_a_stop(
    certificate: Certificate, trusting: ssl.SSLContext
) -> None:
    async with serving(tls=certificate.context) as server:
        client = await server.connect(trusting)
        await client.say(b"login")
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.write(frame(b"much%d" % (32 * MIB)))
        async with asyncio.timeout(GRACE):
            while not server.memory.leased_size:  # noqa: ASYNC110 - it is about to
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
