"""What tests of HTTP share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.http.serving import HttpClient, HttpServer, make_topic, serving


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[HttpServer]:
    async with serving(tmp_path / "data") as server:
        yield server


@pytest.fixture
async def root(server: HttpServer) -> HttpClient:
    return server.root


@pytest.fixture
async def topic(root: HttpClient) -> str:
    """The path of a topic with two partitions."""
    return await make_topic(root)
