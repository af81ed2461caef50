"""The way in when TLS is on: what happens if nobody can be let in."""

import asyncio
import socket
import ssl

import pytest

from courser.transports.tcp_connection import TcpConnection
from courser.transports.tls_door import TlsDoor


def nobody() -> TcpConnection:
    raise AssertionError("nobody came")


async def test_a_system_that_refuses_connections_is_asked_again_later_and_holds_nobody_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    door = TlsDoor(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), make_connection=nobody, has_room=lambda: True)
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
