"""What the tests of the client share: brokers in memory, one of each kind."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.client.twins import Twins, twins


@pytest.fixture(params=["async", "sync"])
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Twins]:
    """A broker, and clients of one kind."""
    async with twins(request.param) as scene:
        yield scene


@pytest.fixture
async def client(scene: Twins) -> Any:
    """A client with the topic "demo/orders" of three partitions."""
    client = await scene.connect()
    await client.create_stream("demo")
    await client.create_topic("demo/orders", partitions_count=3)
    return client
