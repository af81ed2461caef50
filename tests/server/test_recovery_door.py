"""Health checks while a server recovers: it is alive, and it is not ready."""

import asyncio
import contextlib
import http.client
import ssl
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from courser.server.certificates import make_self_signed
from courser.server.recovery_door import RecoveryDoor
from courser.storage.watched_clock import SystemClock
from courser.transports.settings import ConnectionSettings, HttpSettings
from tests.children import recovering
from tests.http.serving import HttpClient
from tests.servers import PATIENCE, RunningServer, free_port
from tests.torture.process import until


def status_of(port: int, path: str) -> int:
    """0 if nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        with contextlib.suppress(ConnectionError, http.client.RemoteDisconnected):
            connection.request("GET", path)
            return connection.getresponse().status
        return 0
    finally:
        connection.close()


def test_a_server_that_recovers_is_live_but_not_ready(tmp_path: Path) -> None:
    port = free_port()
    settings = {"http.enabled": "true", "http.address": f"127.0.0.1:{port}"}
    server = RunningServer(tmp_path, settings=settings, prefix=(sys.executable, str(recovering.__file__)))
    started = threading.Thread(target=server.start)
    started.start()
    try:
        until(lambda: status_of(port, "/health/live") == 200, "an answer before the end of recovery")
        assert status_of(port, "/health/ready") == 503
        assert status_of(port, "/streams") == 503
        assert "listening" not in server.output
    finally:
        (tmp_path / "recovered").touch()
        started.join(PATIENCE)
    try:
        assert [status_of(port, path) for path in ("/health/live", "/health/ready", "/streams")] == [200, 200, 401]
    finally:
        server.stop()


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_the_address_is_free_again_at_once(tmp_path: Path, is_encrypted: bool) -> None:
    tls = trusting = None
    if is_encrypted:
        key, certificate = make_self_signed("127.0.0.1", datetime.now(UTC))
        (tmp_path / "both.pem").write_bytes(key + certificate)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(tmp_path / "both.pem")
        trusting = ssl.create_default_context(cadata=certificate.decode())
    settings = HttpSettings(host="127.0.0.1", port=free_port())
    for _ in range(2):
        door = RecoveryDoor(settings, ConnectionSettings(), SystemClock(), tls)
        await door.open()
        client = HttpClient(settings.port, tls=trusting)
        live, ready = await client.ask("GET", "/health/live"), await client.ask("GET", "/health/ready")
        assert (live.status, ready.status, ready.headers["retry-after"]) == (200, 503, "1")
        idle = await client.open()
        await door.close()
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE):
                assert await idle[0].read() == b""
        idle[1].close()
