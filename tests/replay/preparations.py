"""Steps that the recordings tell of in words only."""

import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.replay.captures import Exchange, Wire, section
from tests.replay.connections import Connection
from tests.replay.server import ReplayServer
from tests.wire.classic_client import frame as classic_frame


@dataclass(frozen=True)
class Preparation:
    """What a step can work with."""

    server: ReplayServer
    exchange: Exchange
    connection: Connection
    connections: dict[str, Connection]


def vsr_frame(operation: int, body: bytes, *, client: bytes, number: int = 0, session: int = 0) -> bytes:
    """A whole request, without a checksum."""
    header = bytearray(256)
    struct.pack_into("<I", header, 48, 256 + len(body))
    header[60] = 5
    header[128:144] = client
    struct.pack_into("<Q", header, 168, number)
    header[176] = operation
    struct.pack_into("<Q", header, 184, session)
    return bytes(header) + body


async def _log_in_with_own_client_id(preparation: Preparation) -> None:
    """Each of these frames came from a client of its own."""
    register = next(exchange for exchange in section(Wire.VSR, "frames") if exchange.command == "Register")
    await _register(preparation.connection, register.request[256:], preparation.exchange)


async def _register(connection: Connection, body: bytes, exchange: Exchange) -> None:
    """Log in as the client whose request follows."""
    answer = await connection.ask(vsr_frame(1, body, client=exchange.request[128:144]))
    assert answer.channel == "ok", answer.outcome
    connection.recorded_session = struct.unpack_from("<Q", exchange.request, 184)[0]
    connection.our_session = struct.unpack_from("<Q", answer.body, 4)[0]


async def _make_topic_without_partitions(preparation: Preparation) -> None:
    """The topic z of stream r."""
    login = next(exchange for exchange in section(Wire.CLASSIC, "groups") if exchange.command == "LoginUser")
    topic = b"\x02\x01r" + struct.pack("<IBQQB", 0, 1, 0, 0, 0) + b"\x01z"
    for request in (login.request, classic_frame(202, b"\x01r"), classic_frame(302, topic)):
        assert (await preparation.connection.ask(request)).channel == "ok"


async def _fill_token_table(preparation: Preparation) -> None:
    """100 tokens exist."""
    request = preparation.exchange.request
    number = struct.unpack_from("<Q", request, 168)[0]
    count = len(preparation.server.broker.catalog.state.users[0].tokens)
    for index in range(count, 100):
        name = f"filler-{index}".encode()
        body = bytes([len(name)]) + name + bytes(8)
        # The numbers just below the one that follows: they were left free for this.
        frame = vsr_frame(
            146,
            body,
            client=request[128:144],
            number=number - 100 + index,
            session=preparation.connection.our_session,
        )
        answer = await preparation.connection.ask(frame)
        assert answer.channel == "ok", answer.outcome


async def _open_idle_connections(preparation: Preparation) -> None:
    """Six more connections were open, without login."""
    for index in range(6):
        connection = await Connection.open(Wire.CLASSIC, preparation.server.port)
        preparation.connections[f"idle {index}"] = connection
        assert await connection.fate() == "usable"


async def _log_bob_in_again(preparation: Preparation) -> None:
    """His password was changed, which ends his sessions here, and on the real server does not."""
    connection = await Connection.open(Wire.VSR, preparation.server.port)
    await preparation.connection.close()
    preparation.connections[preparation.exchange.connection] = connection
    login = next(exchange for exchange in section(Wire.VSR, "users") if exchange.name == "login bob")
    body = login.request[256:].replace(b"\x06secret", b"\x07secret3")
    await _register(connection, body, preparation.exchange)


async def _let_token_expire(preparation: Preparation) -> None:
    """Made to live for 200 ms."""
    preparation.server.clock.advance(200_000)


Step = Callable[[Preparation], Awaitable[None]]

PREPARATIONS: dict[tuple[Wire, str], Step] = {
    (Wire.VSR, "tokens/create token over the limit"): _fill_token_table,
    (Wire.VSR, "users/streams after permission given"): _log_bob_in_again,
    (Wire.CLASSIC, "users/login with expired token"): _let_token_expire,
    (Wire.CLASSIC, "extras/two sessions see each other"): _open_idle_connections,
}
"""Before single exchanges."""

USUALLY_FRESH: dict[tuple[Wire, str], Step] = {
    (Wire.VSR, "malformed"): _log_in_with_own_client_id,
    (Wire.VSR, "crash"): _log_in_with_own_client_id,
    (Wire.CLASSIC, "crash"): _make_topic_without_partitions,
}
"""Sections in which every exchange has a connection of its own, prepared like this."""
