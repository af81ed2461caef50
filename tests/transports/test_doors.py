"""Listening on all addresses of a host."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Sequence
from typing import Any

import pytest

from courser.broker.partition.read_buffers import ReadBuffers
from courser.model.memory_ledger import MemoryLedger
from courser.transports.connections import Connections
from courser.transports.doors import PlainDoor, TlsDoor, open_sockets
from courser.transports.settings import ConnectionSettings
from courser.transports.tcp_connection import TlsConnection
from tests.fakes.clocks import ManualClock

ADDRESSES = ("127.0.0.1", "127.0.0.2")
"""Two addresses that every Linux machine has, as ``localhost`` may have one of IPv4 and one of IPv6."""


@pytest.fixture
async def _resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(_host: str, port: int, **_: Any) -> Sequence[Any]:
        # Twice, as the resolver gives an address that is in the file of hosts twice.
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in (*ADDRESSES, *ADDRESSES)]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)


def doors() -> list[PlainDoor | TlsDoor]:
    settings = ConnectionSettings()
    connections = Connections(
        settings,
        ManualClock(),
        count_max=10,
        request_memory=MemoryLedger(settings.request_memory),
        reply_memory=ReadBuffers(MemoryLedger(settings.reply_memory)),
    )

    def make() -> Any:
        return asyncio.Protocol()

    return [
        PlainDoor(make),
        TlsDoor(
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), connections, make_connection=make, handshake_deadline=1_000_000
        ),
    ]


@pytest.mark.usefixtures("_resolver")
async def test_all_addresses_of_a_host_have_the_same_port() -> None:
    for door in doors():
        sockets = await open_sockets("localhost", 0)
        await door.serve(sockets)
        host, port = sockets[0].getsockname()
        assert host == ADDRESSES[0]
        for address in ADDRESSES:
            with pytest.raises(OSError, match="in use"), socket.socket() as other:
                other.bind((address, port))
        door.close()


@pytest.mark.usefixtures("_resolver")
async def test_a_port_that_is_in_use_on_one_address_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    bind = socket.socket.bind
    refused: list[int] = []

    class Refusing(socket.socket):
        def bind(self, address: Any) -> None:
            if address[0] == ADDRESSES[1] and len(refused) < 3:
                refused.append(address[1])
                raise OSError(errno.EADDRINUSE, "in use")
            bind(self, address)

    monkeypatch.setattr(socket, "socket", Refusing)
    sockets = await open_sockets("localhost", 0)
    ports = {listening.getsockname()[1] for listening in sockets}
    for listening in sockets:
        listening.close()
    assert (len(sockets), len(ports), len(refused)) == (2, 1, 3)
    refused.clear()
    with pytest.raises(OSError, match="in use"):
        await open_sockets("localhost", ports.pop())
    assert len(refused) == 1


def nobody() -> TlsConnection:
    raise AssertionError("nobody came")


async def test_a_system_that_refuses_connections_is_asked_again_later_and_holds_nobody_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connections = Connections(ConnectionSettings(), ManualClock(), count_max=1, request_memory=MemoryLedger(1 << 20))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    door = TlsDoor(context, connections, make_connection=nobody, handshake_deadline=1)
    with socket.socket() as deaf:
        # It does not listen: every try to accept fails at once.
        deaf.setblocking(False)
        accepting = asyncio.create_task(door._accept(deaf))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not accepting.done()
        assert caplog.text.count("cannot accept connections") == 1
        accepting.cancel()
        await asyncio.wait((accepting,))
