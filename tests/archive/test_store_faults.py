"""Each way in which a real S3 server can fail: sends go on, nothing is deleted early, and the archive catches up."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from courser.archive.object_store import ObjectStore
from courser.broker.archive.archive_share import Backlog
from tests.archive.brokers import HOUR, archiver_of, backlog_of, fill, partition_of, running, settings_of, texts
from tests.archive.faulty_front import Fault, FaultyFront, running_front
from tests.archive.seaweed import SeaweedServer
from tests.archive.test_restore import restore
from tests.fakes.clocks import ManualClock

BUCKET = "faults"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    with SeaweedServer(tmp_path_factory.mktemp("seaweed")) as server:
        server.client.create_bucket(Bucket=BUCKET)
        yield server


@pytest.fixture
def front(server: SeaweedServer) -> Iterator[FaultyFront]:
    with running_front(server.endpoint) as front:
        yield front


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.value)
async def test_nothing_is_deleted_early_and_the_archive_catches_up(
    server: SeaweedServer, front: FaultyFront, tmp_path: Path, fault: Fault
) -> None:
    prefix = f"{fault.name.lower()}/"
    place = server.settings(BUCKET, endpoint=front.address, key_prefix=prefix, request_timeout=2_000_000)
    clock = ManualClock()
    settings = settings_of(store=place, expiry=HOUR)
    async with running(tmp_path / "old", settings, clock=clock) as (broker, client):
        await fill(broker, client, "before")
        assert await archiver_of(broker).run_once()
        front.fault = fault
        # Sends are acknowledged while a run fails.
        run = asyncio.create_task(archiver_of(broker).run_once())
        await fill(broker, client, "a", "b")
        await run
        # What became of a request whose reply was lost is found out by looking: such a run may succeed.
        is_done = await archiver_of(broker).run_once()
        assert not is_done or fault is Fault.REPLY_LOST
        assert front.broken_count
        assert is_done == (await backlog_of(broker) == Backlog())
        # All segments are expired now; the cleaner may only take what is confirmed.
        clock.advance(2 * HOUR)
        await broker.broker.retention.clean_all()
        assert partition_of(broker).reader.start_offset == 0, "what was deleted is in the archive"
        assert is_done or partition_of(broker).log.start_offset == 1
        assert [payload for _, payload in await texts(client)] == [b"before", b"a", b"b"]
        front.fault = None
        assert await archiver_of(broker).run_once()
        assert await backlog_of(broker) == Backlog()
        assert [payload for _, payload in await texts(client)] == [b"before", b"a", b"b"]
    # Ask the store itself: the bytes of each segment are there once, or once more where what arrived was not good.
    restore(ObjectStore(replace(place, endpoint=server.endpoint)), tmp_path / "new" / "data")
    async with running(tmp_path / "new", settings_of(tmp_path / "another")) as (_, client):
        assert [payload for _, payload in await texts(client)] == [b"before", b"a", b"b"]
    logs = [key for key in server.objects(BUCKET, prefix) if key.endswith(".log")]
    if fault is Fault.WRONG_BYTES:
        assert len(logs) > 3, "what arrived otherwise stays, and is not referred to"
    else:
        assert len(logs) == 3, "nothing is uploaded twice"
