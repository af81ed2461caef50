"""WebSocket as a carrier: the library ``websockets`` is the client, and a raw socket for what it would not send."""

import asyncio
import logging
import random
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from courser.model.buffers import Buffer
from courser.model.messaging import Transport
from courser.server.certificates import Certificate
from courser.server.configuration.settings import TlsSettings
from courser.storage.watched_clock import SystemClock
from courser.transports.settings import ConnectionSettings
from courser.transports.websocket import assemble_websocket
from courser.transports.websocket_frames import message, read_header
from tests.transports.echo import REFUSED_SIZE, frame
from tests.transports.tcp_servers import GRACE, MIB, SECOND, Client, Server, serving

HANDSHAKE = (
    b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
BINARY, TEXT, CONTINUATION, CLOSE, PING = 2, 1, 0, 8, 9
FINAL = 0x80

websocket_serving = partial(serving, transport=Transport.WEBSOCKET, assemble=assemble_websocket)


def masked(
    payload: bytes, opcode: int = BINARY, *, first: int | None = None, mask: bytes = b"\x01\x80\x7f\xff"
) -> bytes:
    """A frame as a client sends it."""
    size = len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    elif size < 1 << 16:
        length = b"\xfe" + struct.pack(">H", size)
    else:
        length = b"\xff" + struct.pack(">Q", size)
    body = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
    return bytes([FINAL | opcode if first is None else first]) + length + mask + body


@asynccontextmanager
async def connected(server: Server, tls: ssl.SSLContext | None = None) -> AsyncIterator[ClientConnection]:
    scheme, host = ("ws", "127.0.0.1") if tls is None else ("wss", "localhost")
    async with connect(
        f"{scheme}://{host}:{server.port}/", ssl=tls, max_size=None, compression=None, proxy=None, close_timeout=GRACE
    ) as client:
        yield client


async def say(client: ClientConnection, text: bytes) -> bytes:
    await client.send(frame(text))
    answer = await asyncio.wait_for(client.recv(), GRACE)
    assert isinstance(answer, bytes)
    return answer[1:-1]


async def raw_client(server: Server) -> Client:
    """Past the handshake."""
    client = await server.connect()
    client.writer.write(HANDSHAKE % b"/")
    answer = await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), GRACE)
    assert answer.startswith(b"HTTP/1.1 101")
    return client


async def close_reason(client: Client) -> tuple[int, str]:
    """The close frame that is the last thing to come."""
    data = await client.end()
    assert data[0] == FINAL | CLOSE
    assert data[1] == len(data) - 2
    return int.from_bytes(data[2:4], "big"), data[4:].decode()


# --- what works ---------------------------------------------------------------------------------------


async def test_every_request_is_a_message_and_so_is_every_reply() -> None:
    async with websocket_serving() as server, connected(server) as client:
        assert await say(client, b"login") == b"login"
        # With the three bytes of their length, as long as the shortest and longest frames of each kind of header.
        for size in (0, 122, 123, 65_532, 65_533, 1 * MIB):
            text = bytes(range(256)) * (size // 256 + 1)
            assert await say(client, text[:size]) == text[:size]
        assert server.sessions[0].transport is Transport.WEBSOCKET
        await client.close()
        assert (client.close_code, client.close_reason) == (1000, "")
        await server.until(lambda: len(server.closed) == 1)


async def test_requests_sent_ahead_are_answered_in_order() -> None:
    async with websocket_serving() as server, connected(server) as client:
        await say(client, b"login")
        texts = [b"%03d" % number * (256 * (number % 9) + 1) for number in range(500)]
        for text in texts:
            await client.send(frame(text))
        assert [await client.recv() for _ in texts] == [b"<" + text + b">" for text in texts]


async def test_requests_may_be_split_in_any_way() -> None:
    async with websocket_serving() as server, connected(server) as client:
        await say(client, b"login")
        data = frame(b"one") + frame(b"two" * 30_000)
        await client.send([data[:2], b"", data[2:5], data[5:]])
        assert await client.recv() == b"<one>"
        assert await client.recv() == b"<" + b"two" * 30_000 + b">"
        await client.send(data[:4])
        await client.send(data[4:])
        assert await client.recv() == b"<one>"
        assert len(await client.recv()) == 90_002


async def test_byte_by_byte_is_as_good_as_at_once() -> None:
    async with websocket_serving() as server:
        client = await raw_client(server)
        for byte in masked(b"are you there", PING) + masked(frame(b"x" * 200)):
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert await client.reader.readexactly(15) == b"\x8a\x0dare you there"
        assert await client.reader.readexactly(206) == b"\x82\x7e\x00\xca<" + b"x" * 200 + b">"


async def test_frames_may_follow_the_handshake_at_once() -> None:
    async with websocket_serving() as server:
        client = await server.connect()
        client.writer.write(HANDSHAKE % b"/" + masked(frame(b"hello")))
        assert (await client.reader.readuntil(b">")).endswith(b"\r\n\r\n\x82\x07<hello>")


async def test_pings_are_answered_between_the_fragments_of_a_message() -> None:
    async with websocket_serving() as server:
        client = await raw_client(server)
        data = frame(b"whole")
        client.writer.write(masked(data[:4], first=BINARY) + masked(b"?", PING) + masked(data[4:], CONTINUATION))
        assert await client.reader.readexactly(3 + 9) == b"\x8a\x01?" + b"\x82\x07<whole>"


async def test_large_replies_are_fragments_of_one_message() -> None:
    async with websocket_serving() as server, connected(server) as client:
        await say(client, b"login")
        assert await say(client, b"much%d" % (20 * MIB)) == bytes(20 * MIB)


def test_fragments_cut_buffers_wherever_they_have_to() -> None:
    buffers: list[Buffer] = [b"ab", b"", memoryview(b"cdefg"), b"h"]
    assert b"".join(message(buffers, 3)) == b"\x02\x03abc" + b"\x00\x03def" + b"\x80\x02gh"
    assert b"".join(message(buffers, 4)) == b"\x02\x04abcd" + b"\x80\x04efgh"
    assert b"".join(message(buffers, 8)) == b"\x82\x08abcdefgh"
    assert message([]) == [b"\x82\x00"]


def test_a_header_is_read_when_all_of_it_is_there() -> None:
    for size in (5, 200, 70_000):
        whole = masked(bytes(size))
        header = read_header(memoryview(whole))
        assert header is not None
        assert (header.size, header.payload_size, header.mask) == (len(whole) - size, size, b"\x01\x80\x7f\xff")
        assert all(read_header(memoryview(whole)[:length]) is None for length in range(header.size))


async def test_over_tls(certificate: Certificate) -> None:
    trusting = ssl.create_default_context(cadata=certificate.pem.decode())
    async with websocket_serving(tls=certificate.context) as server, connected(server, trusting) as client:
        await say(client, b"login")
        assert await say(client, b"x" * MIB) == b"x" * MIB
        assert await say(client, b"much%d" % (9 * MIB)) == bytes(9 * MIB)


async def test_over_tls_a_certificate_of_another_is_refused_by_the_client(certificate: Certificate) -> None:
    settings = TlsSettings(certificate_file=None, key_file=None, is_self_signed=True)
    other = Certificate(settings, "localhost", SystemClock())
    async with websocket_serving(tls=certificate.context) as server:
        for context, host in (
            (ssl.create_default_context(cadata=other.pem.decode()), "localhost"),
            (ssl.create_default_context(), "localhost"),
            (ssl.create_default_context(cadata=certificate.pem.decode()), "example.org"),
        ):
            with pytest.raises(ssl.SSLCertVerificationError):
                await connect(
                    f"wss://localhost:{server.port}/",
                    ssl=context,
                    server_hostname=host,
                    proxy=None,
                    close_timeout=GRACE,
                )
        assert not server.sessions


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    settings = TlsSettings(certificate_file=None, key_file=None, is_self_signed=True)
    return Certificate(settings, "localhost", SystemClock())


# --- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (HANDSHAKE % b"/other", b"404"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"426"),
        (HANDSHAKE.replace(b"13", b"12") % b"/", b"400"),
        (HANDSHAKE.replace(b"AAAA==", b"==") % b"/", b"400"),
        (b"GET / HTTP/1.1\r\n" + b"x: %s\r\n" % (b"y" * 9000) + b"\r\n", b"431"),
    ],
)
async def test_a_handshake_that_is_not_one_is_refused(request_head: bytes, status: bytes) -> None:
    async with websocket_serving() as server:
        client = await server.connect()
        client.writer.write(request_head)
        assert (await client.end()).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("nonsense", [b"\x00" * 20_000, b"nonsense\r\n\r\n", frame(b"x" * 17_000)])
async def test_other_protocols_are_cut_off(nonsense: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with websocket_serving() as server:
        client = await server.connect()
        client.writer.write(nonsense)
        assert await client.end() == b""
        assert await say_raw(await raw_client(server), b"hello") == b"<hello>"
    assert [record.levelname for record in caplog.records if "handshake" in record.getMessage()] == ["INFO"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def say_raw(client: Client, text: bytes) -> bytes:
    client.writer.write(masked(frame(text)))
    return (await asyncio.wait_for(client.reader.readuntil(b">"), GRACE))[2:]


async def test_the_client_learns_the_path() -> None:
    async with websocket_serving() as server:
        with pytest.raises(InvalidStatus) as refusal:
            await connect(f"ws://127.0.0.1:{server.port}/elsewhere", proxy=None)
        expected = b"The binary protocol is at /, subscriptions in JSON are at /subscribe\n"
        assert refusal.value.response.body == expected


@pytest.mark.parametrize(
    ("data", "code", "reason"),
    [
        (masked(b"hello", TEXT), 1003, "text messages are not supported"),
        (masked(b"x" * MIB, TEXT), 1003, "text messages are not supported"),
        (b"\x82\x05hello", 1002, "without a mask"),
        (masked(b"x", first=0xC2), 1002, "reserved bits"),
        (masked(b"x", opcode=3), 1002, "unknown opcode 3"),
        (masked(b"x", opcode=15), 1002, "unknown opcode 15"),
        (masked(b"x" * 126, PING), 1002, "more than 125 bytes"),
        (masked(b"x", first=PING), 1002, "in fragments"),
        (masked(b"x", CONTINUATION), 1002, "a fragment that does not belong"),
        (masked(b"x", first=BINARY) + masked(b"x"), 1002, "a fragment that does not belong"),
        (b"\x82\xff" + b"\xff" * 8 + bytes(4), 1009, "bytes, where 1000000 are allowed"),
        (masked(b"x", first=BINARY) + b"\x80\xff" + struct.pack(">Q", 1_000_000), 1009, "1000001 bytes, where 1000000"),
        (masked(frame(b"") + frame(b"x" * 17_000)[:3]), 1008, "17003 bytes before a login, where 16384 are allowed"),
    ],
)
async def test_frames_that_no_client_may_send_end_the_connection(data: bytes, code: int, reason: str) -> None:
    async with websocket_serving(ConnectionSettings(frame_size_max=1_000_000)) as server:
        other, client = await raw_client(server), await raw_client(server)
        client.writer.write(data + bytes(4))
        if code == 1008:
            assert await client.reader.readexactly(4) == b"\x82\x02<>"
        found = await close_reason(client)
        assert found[0] == code
        assert reason in found[1]
        assert await say_raw(other, b"hello") == b"<hello>"


async def test_a_refused_request_is_answered_and_the_rest_of_it_is_dropped() -> None:
    async with websocket_serving() as server, connected(server) as client:
        await say(client, b"login")
        await client.send(b"~" + bytes(REFUSED_SIZE - 1))
        assert await client.recv() == b"too large!"
        with pytest.raises(ConnectionClosed):
            await client.recv()
        assert (client.close_code, client.close_reason) == (1008, "it is too large")


async def test_random_bytes_end_only_their_own_connection() -> None:
    dice = random.Random(1)
    async with websocket_serving() as server:
        other = await raw_client(server)
        for _ in range(50):
            client = await raw_client(server)
            # Most begin as a frame should, so that not all end at the first byte.
            client.writer.write(dice.choice([b"", b"\x82\xff", b"\x82\xfe", b"\x89\x85"]) + dice.randbytes(300))
            client.writer.write_eof()
            await client.end()
            assert await say_raw(other, b"hello") == b"<hello>"


async def test_a_flood_of_empty_frames_does_not_hold_others_up() -> None:
    async with websocket_serving() as server:
        flood, other = await raw_client(server), await raw_client(server)
        flood.writer.write(masked(b"") * 20_000 + masked(b"", PING) * 5 + masked(frame(b"at last")))
        assert await say_raw(other, b"hello") == b"<hello>"
        assert (await asyncio.wait_for(flood.reader.readuntil(b">"), GRACE)).endswith(b"\x82\x09<at last>")


# --- who is slow --------------------------------------------------------------------------------------


async def test_who_does_not_read_is_cut_off_in_time_and_gets_no_pongs_meanwhile() -> None:
    async with websocket_serving(ConnectionSettings(send_deadline=SECOND)) as server:
        stuck, other = await raw_client(server), await raw_client(server)
        assert await say_raw(stuck, b"login") == b"<login>"
        stuck.reader._transport.pause_reading()  # type: ignore[attr-defined]
        stuck.writer.write(masked(frame(b"much%d" % (32 * MIB))))
        await server.until_unread()
        size = server.memory.ledger.size
        assert size > 16 * MIB
        for _ in range(20):
            stuck.writer.write(masked(b"x" * 100, PING) * 100)
            assert await say_raw(other, b"hello") == b"<hello>"
        (connection,) = (each for each in server.connections if each.loop.session is server.sessions[0])  # type: ignore[union-attr]
        assert connection.unsent_size <= 32 * MIB + 12  # type: ignore[attr-defined]
        for _ in range(2):
            server.clock.advance(SECOND + 1)
            server.connections.enforce_deadlines()
        await server.until(lambda: server.sessions[0] in server.closed)
        assert server.memory.ledger.size == 0
        assert await say_raw(other, b"hello") == b"<hello>"


async def test_who_stops_in_the_middle_of_a_request_is_cut_off_in_time() -> None:
    async with websocket_serving(ConnectionSettings(frame_deadline=SECOND)) as server:
        client = await raw_client(server)
        assert await say_raw(client, b"login") == b"<login>"
        client.writer.write(masked(frame(b"x" * 100))[:50] + b"")
        (connection,) = server.connections
        loop = connection.loop
        async with asyncio.timeout(GRACE):
            while loop is None or loop.frame_since is None:  # noqa: ASYNC110 - it is about to
                await asyncio.sleep(0)
        server.connections.enforce_deadlines()
        server.clock.advance(SECOND + 1)
        server.connections.enforce_deadlines()
        await server.until(lambda: len(server.closed) == 1)


async def test_who_does_not_finish_the_handshake_is_cut_off_as_a_stranger() -> None:
    async with websocket_serving(ConnectionSettings(login_deadline=SECOND)) as server:
        client = await server.connect()
        client.writer.write((HANDSHAKE % b"/")[:-2])
        async with asyncio.timeout(GRACE):
            while not server.connections.count:  # noqa: ASYNC110 - it is about to
                await asyncio.sleep(0)
        server.clock.advance(SECOND + 1)
        server.connections.enforce_deadlines()
        assert await client.end() == b""


async def test_requests_that_find_no_memory_wait_for_it() -> None:
    settings = ConnectionSettings(request_memory=4 * MIB)
    async with (
        websocket_serving(settings) as server,
        connected(server) as first,
        connected(server) as second,
        connected(server) as third,
    ):
        clients, texts = (first, second, third), [letter * (3 * MIB) for letter in (b"a", b"b", b"c")]
        for client in clients:
            await say(client, b"login")
        assert await asyncio.gather(*map(say, clients, texts)) == texts


async def test_a_stop_says_goodbye() -> None:
    async with websocket_serving() as server:
        client, silent = await raw_client(server), await server.connect()
        assert await say_raw(client, b"hello") == b"<hello>"
        await server.stop(GRACE)
        assert await client.end() == b"\x82\x03bye" + b"\x88\x18\x03\xf0the server is stopping"
        assert await silent.end() == b"", "no WebSocket yet, so no frame either"
