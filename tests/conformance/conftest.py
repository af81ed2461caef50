"""One server for all of these tests; each test has names of its own on it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import pytest
import pytest_asyncio

from courser.api import commands as c
from courser.model.topic_options import TopicOptions
from tests.conformance.callers import TRANSPORTS, Caller, caller
from tests.conformance.serving import Served, served

USUAL_OPTIONS = TopicOptions(compression=1, replication_factor=1)
"""Older SDKs always send these two."""
Connect = Callable[[], AbstractAsyncContextManager[Caller]]


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def server() -> AsyncIterator[Served]:
    async with served() as server:
        with pytest.MonkeyPatch.context() as patch:
            # Wrong passwords are tried over every transport, and every one of them makes the next one wait longer.
            patch.setattr(server.broker.authentication, "_sleep", no_sleep)
            yield server


async def no_sleep(_seconds: float) -> None:
    return


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def connect(server: Served, transport: str) -> Connect:
    """Opens further connections of the same transport, on which nobody is logged in."""
    return partial(caller, server, transport)


@pytest_asyncio.fixture(loop_scope="package")
async def root(connect: Connect) -> AsyncIterator[Caller]:
    async with connect() as opened:
        yield await opened.login()


@pytest_asyncio.fixture(loop_scope="package")
async def witness(server: Served) -> AsyncIterator[Caller]:
    """Root over TCP: sees what other transports did."""
    async with caller(server, "tcp") as opened:
        yield await opened.login()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return str(request.node.name).removeprefix("test_")


@pytest_asyncio.fixture(loop_scope="package")
async def topic(root: Caller, name: str) -> str:
    """The name of a stream and of a topic in it, with two partitions."""
    await root.ask(c.CreateStream(name))
    await root.ask(c.CreateTopic(name, name, 2, USUAL_OPTIONS))
    return name
