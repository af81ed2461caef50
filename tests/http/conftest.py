"""What tests of HTTP share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.http.serving import HttpClient, HttpServer, serving


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[HttpServer]:
    async with serving(tmp_path / "data") as server:
        yield server


@pytest.fixture
async def root(server: HttpServer) -> HttpClient:
    return await server.client.login()


@pytest.fixture
async def topic(root: HttpClient) -> str:
    """The path of a topic with two partitions."""
    await root.ask("POST", "/streams", {"name": "s"})
    options = {"compression_algorithm": "none", "message_expiry": 0, "max_topic_size": 0}
    reply = await root.ask("POST", "/streams/s/topics", {"name": "t", "partitions_count": 2} | options)
    assert reply.status == 200
    return "/streams/s/topics/t"
