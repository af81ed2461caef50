"""The official packages read from the first offset on, whether the messages are on disk or only in the archive."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import courser
from courser.client.client import Client
from tests.sdk.conversations import Conversation, Refused
from tests.servers import PATIENCE, RunningServer

PLACE = {"stream": "shop", "topic": "orders"}
COUNT = 12


def payload(offset: int) -> str:
    """Large enough for two to fill a segment."""
    return f"{offset} " + "x" * 500_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    directory: Path = tmp_path_factory.mktemp("archived")
    settings = {
        "http.enabled": "true",
        "http.address": "127.0.0.1:0",
        "data_maintenance.archiver.enabled": "true",
        "data_maintenance.archiver.path": directory / "archive",
        "data_maintenance.archiver.interval": "50 ms",
        "data_maintenance.messages.interval": "50 ms",
    }
    with RunningServer(directory, settings=settings) as running:
        asyncio.run(fill(running))
        yield running


async def fill(server: RunningServer) -> None:
    """Send, and wait until most messages are only in the archive. A reader goes along."""
    async with courser.connect(f"iggy://iggy:iggy@{server.address}") as client:
        await client.create_stream("shop")
        await client.create_topic("shop", "orders", segment_size="1 MiB", local_retention_size=1)
        with Conversation("0.8.0", server.address) as along:
            along.ask("connect", client="own")
            found: list[str] = []
            for offset in range(COUNT):
                await client.send_messages("shop/orders", partitioning=0, messages=[payload(offset)])
                if offset % 4 == 3:
                    polled = along.ask("poll", client="own", offset=len(found), **PLACE)
                    found += [text for _, text, _ in polled]
            assert found == [payload(offset) for offset in range(COUNT)]
        async with asyncio.timeout(PATIENCE):
            while not await is_archived_alone(client):  # noqa: ASYNC110 - the server works beside it
                await asyncio.sleep(0.05)


async def is_archived_alone(client: Client) -> bool:
    segments = (await client.get_segments("shop/orders", partition_id=0)).segments
    return all(found.location == "remote" for found in segments[:-1])


def address_of(server: RunningServer, transport: str) -> str:
    return server.address if transport == "tcp" else f"iggy+http://{server.address_of('http')}"


CLIENTS = pytest.mark.parametrize(("release", "transport"), [("0.8.0", "tcp"), ("0.9.0", "tcp"), ("0.9.0", "http")])


@CLIENTS
def test_every_offset_comes_once(server: RunningServer, release: str, transport: str) -> None:
    with Conversation(release, address_of(server, transport)) as child:
        child.ask("connect", client="own")
        found = child.ask("poll", client="own", **PLACE)
    assert [(offset, text) for offset, text, _ in found] == [(offset, payload(offset)) for offset in range(COUNT)]


@CLIENTS
def test_an_object_that_vanishes_is_an_error_and_skips_nothing(
    server: RunningServer, release: str, transport: str
) -> None:
    """Behind a start, nothing of the archive is in memory."""
    server.stop()
    server.start()
    vanished = sorted((server.directory / "archive").rglob("*.log"))[2]
    content = vanished.read_bytes()
    found: list[int] = []
    with Conversation(release, address_of(server, transport)) as child:
        child.ask("connect", client="own")

        def read_on() -> None:
            while part := child.ask("poll_once", client="own", offset=len(found), **PLACE):
                assert [text for _, text, _ in part] == [payload(offset) for offset, _, _ in part]
                found.extend(offset for offset, _, _ in part)

        vanished.unlink()
        try:
            with pytest.raises(Refused):
                read_on()
            assert found == list(range(int(vanished.name.partition("-")[0]))), "all that comes before it"
            with pytest.raises(Refused):
                read_on()
        finally:
            vanished.write_bytes(content)
        read_on()
    assert found == list(range(COUNT))
