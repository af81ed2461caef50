"""QUIC on the address of HTTP."""

import asyncio
import logging
import ssl
from pathlib import Path

import pytest
from qh3.asyncio.client import connect
from qh3.quic.configuration import QuicConfiguration

from courser.api import commands as c
from courser.handlers.dispatcher import Dispatcher
from courser.model.messaging import Transport
from courser.server.listeners import Dependencies
from tests.transports.whole_servers import PATIENCE, WholeServer, whole_server
from tests.wire.classic_client import request

REFUSAL = "not listening for QUIC"


async def ping(server: WholeServer) -> bytes:
    configuration = QuicConfiguration(verify_mode=ssl.CERT_NONE, server_name="localhost")
    async with connect("127.0.0.1", server.http_port, configuration=configuration) as client:
        reader, writer = await client.create_stream()
        writer.write(request(c.Ping()))
        writer.write_eof()
        return await asyncio.wait_for(reader.read(), PATIENCE)


async def test_quic_is_served_on_the_udp_port_with_the_number_of_http(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(10):
        caplog.clear()
        async with whole_server(tmp_path / str(number), "quic.enabled=true") as server:
            # The port is a free one for TCP; somebody else may have it for UDP.
            if REFUSAL not in caplog.text:
                assert await ping(server) == bytes(8)
                return
    pytest.fail("ten ports were all taken")


async def test_a_port_that_is_taken_is_logged_and_the_rest_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with whole_server(tmp_path / "data", "quic.enabled=true") as server:
        caplog.clear()
        dependencies = Dependencies(
            server.services, server.connections, Dispatcher(server.broker), server.subscriptions
        )
        with caplog.at_level(logging.WARNING):
            # It is taken by now, whoever has it.
            await server.listeners._open_quic_beside_http(dependencies, server.addresses[Transport.HTTP])
        assert REFUSAL in caplog.text
