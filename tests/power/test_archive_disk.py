"""The disk of an archive is unmounted and mounted again, while the server runs and while it does not."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from courser.storage.paths import TEMPORARY_SUFFIX
from tests.archive.brokers import HOUR, archiver_of, fill, partition_of, running, settings_of, texts
from tests.chaos.sandbox import fill_disk
from tests.fakes.clocks import ManualClock
from tests.power.disks import Disk

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    found = Disk("ext4", tmp_path / "image", tmp_path / "mnt")
    found.make()
    found.mount()
    yield found
    found.remove()


@pytest.mark.parametrize("inside", ["", "courser"], ids=["mount point", "directory on the disk"])
async def test_an_unmounted_disk_gets_nothing_and_loses_nothing(tmp_path: Path, disk: Disk, inside: str) -> None:
    clock, archive = ManualClock(), disk.path / inside
    settings = settings_of(archive, expiry=HOUR)
    async with running(tmp_path / "server", settings, clock=clock) as (broker, client):
        await fill(broker, client, "a", "b")
        assert await archiver_of(broker).run_once()
        disk.unmount()
        await fill(broker, client, "c")
        assert not await archiver_of(broker).run_once(with_active=True)
        assert archiver_of(broker).is_gone
        clock.advance(2 * HOUR)
        await broker.broker.retention.clean_all()
        assert len(partition_of(broker).log.segments) == 3
    # The last run could not be made either, and neither can those of the next start.
    async with running(tmp_path / "server", settings, clock=clock) as (broker, client):
        assert archiver_of(broker).is_gone
        assert not await archiver_of(broker).run_once(with_active=True)
        assert list(disk.path.iterdir()) == [], "nothing is written into the mount point"
        await broker.broker.retention.clean_all()
        assert len(partition_of(broker).log.segments) == 3
        disk.mount()
        assert await archiver_of(broker).run_once(with_active=True)
        await broker.broker.retention.clean_all()
        assert len(partition_of(broker).log.segments) == 0
        assert [payload for _, payload in await texts(client)] == [b"a", b"b", b"c"]


async def test_a_full_disk_of_the_archive_confirms_nothing_and_goes_on_with_room(tmp_path: Path, disk: Disk) -> None:
    clock = ManualClock()
    async with running(tmp_path / "server", settings_of(disk.path, expiry=HOUR), clock=clock) as (broker, client):
        await fill(broker, client, "a")
        assert await archiver_of(broker).run_once()
        ballast = disk.path / "ballast"
        fill_disk(ballast, room=0)
        await fill(broker, client, "b" * 100_000)
        assert not await archiver_of(broker).run_once()
        assert "No space left" in (archiver_of(broker).failure or "")
        assert not archiver_of(broker).is_gone
        clock.advance(2 * HOUR)
        await broker.broker.retention.clean_all()
        assert len(partition_of(broker).log.segments) == 1, "what was archived before is deleted, the rest is not"
        assert not list(disk.path.rglob(f"*{TEMPORARY_SUFFIX}"))
        ballast.unlink()
        assert await archiver_of(broker).run_once()
        await broker.broker.retention.clean_all()
        assert len(partition_of(broker).log.segments) == 0
        assert [len(payload) for _, payload in await texts(client)] == [1, 100_000]
