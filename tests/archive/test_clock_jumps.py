"""The clock of the machine is set while the archive is on: nothing is lost, archived twice or deleted too early."""

from pathlib import Path

import pytest

from courser.archive.reader import ArchiveReader, find_clusters
from tests.archive.brokers import HOUR, archiver_of, fake_store, fill, partition_of, running, settings_of, texts
from tests.archive.test_restore import restore
from tests.fakes.clocks import ManualClock
from tests.fakes.object_store import FakeStore

YEAR = 365 * 24 * HOUR
ALL = [b"a", b"b", b"c", b"d", b"e"]


def archived_offsets(store: FakeStore) -> list[int]:
    """The first offset of each object with messages."""
    names = (key.rpartition("/")[2] for key in store.objects if "/seg/" in key and key.endswith(".log"))
    return sorted(int(name.partition("-")[0]) for name in names)


@pytest.mark.parametrize("retention", [0, HOUR])
@pytest.mark.parametrize("jump", [2 * HOUR, 10 * YEAR, -2 * HOUR, -10 * YEAR])
async def test_nothing_is_lost_or_archived_twice(tmp_path: Path, jump: int, retention: int) -> None:
    store, clock = fake_store(), ManualClock()
    settings = settings_of(expiry=HOUR, retention=retention)

    def kept() -> set[int]:
        return {segment.base_offset for segment in partition_of(broker).log.segments}

    async def look_after() -> None:
        await broker.broker.retention.clean_all()
        if broker.broker.archive_pruner is not None:
            await broker.broker.archive_pruner.prune()

    async with running(tmp_path / "server", settings, store, clock) as (broker, client):
        await fill(broker, client, "a")
        assert await archiver_of(broker).run_once()
        await fill(broker, client, "b")
        clock.jump(jump)
        await look_after()
        assert 1 in kept(), "not archived"
        await fill(broker, client, "c")
        store.is_down = True
        assert not await archiver_of(broker).run_once()
        await look_after()
        assert {1, 2} <= kept(), "not archived"
        store.is_down = False
        assert await archiver_of(broker).run_once()
        await look_after()
        clock.jump(-jump)
        await fill(broker, client, "d")
        await look_after()
        assert 3 in kept(), "not archived"
        assert await archiver_of(broker).run_once()
        await look_after()
    # The clock jumps while the server is stopped, too.
    clock.jump(jump)
    async with running(tmp_path / "server", settings, store, clock) as (broker, client):
        await fill(broker, client, "e")
        await look_after()
        assert 4 in kept(), "not archived"
        assert await archiver_of(broker).run_once()
        clock.advance(2 * HOUR)
        await look_after()
        assert await archiver_of(broker).run_once()
        await look_after()
        assert [payload for _, payload in await texts(client)] == ALL
    assert archived_offsets(store) == [0, 1, 2, 3, 4]
    assert ArchiveReader(store, find_clusters(store)[0]).newest_root() is not None
    restore(store, tmp_path / "restored" / "data")
    async with running(tmp_path / "restored", settings_of(), store, clock) as (broker, client):
        assert [payload for _, payload in await texts(client)] == ALL
