"""The way in when TLS is on: what happens if nobody can be let in."""

import asyncio
import socket
import ssl

import pytest

from courser.model.memory_ledger import MemoryLedger
from courser.transports.connections import Connections
from courser.transports.settings import ConnectionSettings
from courser.transports.tcp_connection import TlsConnection
from courser.transports.tls_door import TlsDoor
from tests.fakes.clocks import ManualClock


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
