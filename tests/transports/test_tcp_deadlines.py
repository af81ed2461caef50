"""Who is cut off, and when: strangers, and clients that send or read too slowly."""

import asyncio
import socket
from contextlib import closing

from courser.transports.settings import ConnectionSettings
from tests.transports.echo import frame
from tests.transports.tcp_servers import GRACE, MIB, SECOND, Client, Server, serving


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
            for _ in range(32):
                # In each turn of the event loop at least 64 KiB of a large frame are received.
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
            assert server.memory.ledger.size <= 70 * MIB
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
