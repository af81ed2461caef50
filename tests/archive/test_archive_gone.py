"""The store of a running server goes away, is exchanged, comes back: only what is in the right one counts."""

import logging
import random
import shutil
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path

import pytest

from courser.archive.disk_store import DiskStore
from courser.archive.errors import ArchiveFailure, ArchiveGone, ArchiveTakenOver
from courser.archive.reader import ArchiveReader, find_clusters
from courser.archive.restore_plan import RestoreSelection, plan_restore
from courser.errors import ErrorCode, RequestFailed
from courser.model import metric_table as m
from courser.model.buffers import Buffer
from courser.storage.files import File
from courser.storage.local_files import LocalFileSystem
from courser.testing.broker import TestBroker
from tests.archive.brokers import HOUR, archiver_of, fake_store, fill, partition_of, running, settings_of, texts
from tests.archive.test_restore import restore
from tests.archive.writing import (
    CLUSTER,
    IDENTITY,
    MESSAGE_SIZE,
    Process,
    archived_bytes,
    capture,
    captured,
    disk,
    expected_bytes,
    plant_segment,
)
from tests.fakes.clocks import ManualClock
from tests.fakes.files import FakeFileSystem
from tests.fakes.object_store import FakeStore


class Left(Enum):
    """What is in the place of an archive that went away."""

    NOTHING = "nothing"
    MOUNT_POINT = "mount point"
    COPY = "copy"
    """With the marker and the seal: only the directory is another one."""


class Place:
    """The directory of an archive. A rename is to the server what another mount is."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "archive"
        self._away = directory / "away"

    def take_away(self, left: Left = Left.MOUNT_POINT) -> None:
        self.path.rename(self._away)
        if left is Left.COPY:
            shutil.copytree(self._away, self.path)
        elif left is Left.MOUNT_POINT:
            self.path.mkdir()

    def names(self) -> list[str]:
        """What is in the directory that is there."""
        return sorted(str(path.relative_to(self.path)) for path in self.path.rglob("*"))

    def bring_back(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._away.rename(self.path)


def bases_of(broker: TestBroker) -> list[int]:
    return [segment.base_offset for segment in partition_of(broker).log.segments]


def restored_count(store: DiskStore) -> int:
    (cluster,) = find_clusters(store)
    return plan_restore(ArchiveReader(store, cluster), RestoreSelection()).message_count


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("left", [Left.NOTHING, Left.MOUNT_POINT])
async def test_nothing_is_archived_or_deleted_while_the_directory_is_another(
    tmp_path: Path, left: Left, caplog: pytest.LogCaptureFixture
) -> None:
    place, clock = Place(tmp_path), ManualClock()
    async with running(tmp_path / "server", settings_of(place.path, expiry=HOUR), clock=clock) as (broker, client):
        archiver = archiver_of(broker)
        await fill(broker, client, "a", "b")
        assert await archiver.run_once()
        place.take_away(left)
        before = place.names()
        await fill(broker, client, "c", "d")
        for _ in range(2):
            assert not await archiver.run_once(with_active=True)
        assert place.names() == before, "nothing is written there"
        assert len(errors(caplog)) == 1, "once for each change"
        assert "the archive is gone" in errors(caplog)[0]
        assert archiver.is_gone
        assert "the archive is gone" in broker.broker.notices()[0]
        assert broker.broker.metrics.value(m.ARCHIVE_GONE) == 1
        clock.advance(2 * HOUR)
        await broker.broker.retention.clean_all()
        await broker.broker.retention.relieve(1 << 40)
        await client.delete_segments("shop/orders", partition_id=0, segments_count=2)
        assert bases_of(broker) == [0, 1, 2, 3], "not what was confirmed before, either"
        assert archiver.guard.condensable_end(partition_of(broker).log) == 0
        with pytest.raises(RequestFailed, match="the archive is gone") as refused:
            await client.purge_topic("shop/orders")
        assert refused.value.code is ErrorCode.NOT_ARCHIVED
        place.bring_back()
        assert await archiver.run_once()
        assert broker.broker.metrics.value(m.ARCHIVE_GONE) == 0
        assert "the archive is back" in caplog.text
        assert broker.broker.notices() == []
        await broker.broker.retention.clean_all()
        assert bases_of(broker) == []
        assert [payload for _, payload in await texts(client)] == [b"a", b"b", b"c", b"d"]
    assert restored_count(DiskStore(LocalFileSystem(), place.path, bytes(16))) == 4


@pytest.mark.parametrize("left", Left)
async def test_a_start_without_the_disk_writes_nothing_and_goes_on_when_it_is_back(
    tmp_path: Path, left: Left, caplog: pytest.LogCaptureFixture
) -> None:
    place, clock = Place(tmp_path), ManualClock()
    settings = settings_of(place.path, expiry=HOUR)
    async with running(tmp_path / "server", settings, clock=clock) as (broker, client):
        await fill(broker, client, "a")
        assert await archiver_of(broker).run_once()
    # Set back: the copy has not what the next start claims.
    place.take_away(left)
    if left is Left.COPY:
        shutil.rmtree(place.path)
        place.bring_back()
        shutil.copytree(place.path, tmp_path / "older")
        async with running(tmp_path / "server", settings, clock=clock) as (broker, client):
            assert await archiver_of(broker).run_once()
        place.take_away(Left.NOTHING)
        (tmp_path / "older").rename(place.path)
    before = place.names()
    async with running(tmp_path / "server", settings, clock=clock) as (broker, client):
        await fill(broker, client, "b")
        assert not await archiver_of(broker).run_once()
        assert place.path.exists() is (left is not Left.NOTHING), "no directory is made"
        assert place.names() == before
        assert sum("the archive is gone" in text for text in errors(caplog)) == 1
        clock.advance(2 * HOUR)
        await broker.broker.retention.clean_all()
        assert bases_of(broker) == [0, 1]
        place.bring_back()
        assert await archiver_of(broker).run_once()
        await broker.broker.retention.clean_all()
        assert bases_of(broker) == []
        assert [payload for _, payload in await texts(client)] == [b"a", b"b"]


async def test_a_copy_in_its_place_is_claimed_and_looked_at_before_it_counts(tmp_path: Path) -> None:
    place, clock = Place(tmp_path), ManualClock()
    async with running(tmp_path / "server", settings_of(place.path, expiry=HOUR), clock=clock) as (broker, client):
        await fill(broker, client, "a", "b")
        assert await archiver_of(broker).run_once()
        place.take_away(Left.COPY)
        next(place.path.rglob(f"{0:020d}-*.log")).unlink()
        before = place.names()
        assert not await archiver_of(broker).run_once()
        assert place.names() == before
        clock.advance(2 * HOUR)
        await broker.broker.retention.clean_all()
        assert bases_of(broker) == [0, 1]
        assert await archiver_of(broker).run_once()
        await broker.broker.retention.clean_all()
        assert bases_of(broker) == []
        assert [payload for _, payload in await texts(client)] == [b"a", b"b"]
        place.bring_back()
        assert not await archiver_of(broker).run_once(), "it is older than its copy now"
        assert archiver_of(broker).is_gone


async def test_what_a_returning_disk_has_lost_is_archived_again_before_it_is_deleted(tmp_path: Path) -> None:
    place, clock = Place(tmp_path), ManualClock()
    async with running(tmp_path / "server", settings_of(place.path, expiry=HOUR), clock=clock) as (broker, client):
        await fill(broker, client, "a", "b")
        assert await archiver_of(broker).run_once()
        place.take_away()
        assert not await archiver_of(broker).run_once()
        place.bring_back()
        lost = next(place.path.rglob(f"{0:020d}-*.log"))
        lost.unlink()
        clock.advance(2 * HOUR)
        await broker.broker.retention.clean_all()
        assert bases_of(broker) == [0, 1]
        assert await archiver_of(broker).run_once()
        await broker.broker.retention.clean_all()
        assert bases_of(broker) == []
        assert [payload for _, payload in await texts(client)] == [b"a", b"b"]


async def test_after_a_start_only_objects_that_are_there_count(tmp_path: Path) -> None:
    place, clock = Place(tmp_path), ManualClock()
    settings = settings_of(place.path, expiry=HOUR)
    async with running(tmp_path / "server", settings, clock=clock) as (broker, client):
        await fill(broker, client, "a", "b")
        assert await archiver_of(broker).run_once()
    next(place.path.rglob(f"{0:020d}-*.log")).unlink()
    async with running(tmp_path / "server", settings, clock=clock) as (broker, client):
        clock.advance(2 * HOUR)
        assert await archiver_of(broker).run_once()
        await broker.broker.retention.clean_all()
        assert bases_of(broker) == []
        assert [payload for _, payload in await texts(client)] == [b"a", b"b"]
    restore(DiskStore(LocalFileSystem(), place.path, bytes(16)), tmp_path / "new" / "data")


def test_in_a_long_run_only_what_was_looked_at_before_a_root_counts_with_it() -> None:
    """The manifest names all segments from the begin on, also those whose objects the store has lost."""
    store, file_system = fake_store(), disk()
    for first, end in ((0, 10), (10, 25)):
        plant_segment(file_system, first, end)
    Process(store, file_system).run(capture(captured((0, 10, 25))))
    store.objects = {key: data for key, data in store.objects.items() if "/seg/" not in key}
    process = Process(store, file_system, seed=2)
    process.writer._commit_size = 1
    process.begin()
    process.writer.start((captured((0, 10, 25)),))
    confirmed = []
    for is_finished in (False, False, True):
        step = process.root_writer.next_step(1_000_000, 5)
        written = process.writer.write(step)
        assert written.is_finished is is_finished
        process.root_writer.put_root(step, [written], is_final=False)
        confirmed.append(sorted(first for first, _ in process.writer.confirm()[IDENTITY].segments))
    assert confirmed == [[0], [0, 10], [0, 10]]
    assert archived_bytes(store) == expected_bytes(0, 25)


class LeavingStore(DiskStore):
    """A directory that goes away at a chosen request that writes: at its begin, or at its end."""

    def __init__(self, place: Place) -> None:
        super().__init__(LocalFileSystem(), place.path, bytes(16))
        self.whole_place = place
        self.write_count = 0
        self.leaves_at = 0
        self.is_left_before = True

    def _put(self, key: str, parts: Iterable[Buffer]) -> bool:
        self.write_count += 1
        is_now = self.write_count == self.leaves_at
        if is_now and self.is_left_before:
            self.whole_place.take_away()
        is_new = super()._put(key, parts)
        if is_now and not self.is_left_before:
            self.whole_place.take_away()
        return is_new


@pytest.mark.parametrize("is_left_before", [True, False])
def test_a_disk_that_goes_away_at_any_write_confirms_nothing_that_is_not_on_it(
    tmp_path: Path, is_left_before: bool
) -> None:
    is_whole = False
    leaves_at = 0
    while not is_whole:
        leaves_at += 1
        place = Place(tmp_path / str(leaves_at))
        place.path.mkdir(parents=True)
        store, file_system = LeavingStore(place), disk(leaves_at)
        for first, end in ((0, 10), (10, 25)):
            plant_segment(file_system, first, end)
        process = Process(store, file_system, seed=leaves_at)
        process.begin()
        store.write_count, store.leaves_at, store.is_left_before = 0, leaves_at, is_left_before
        try:
            process.run(capture(captured((0, 10))))
            process.run(capture(captured((0, 10, 25))))
            is_whole = True
        except ArchiveGone:
            assert place.names() == [], "nothing is written there"
            confirmed = process.confirmed.get(IDENTITY, frozenset())
            place.bring_back()
            assert archived_size(store) >= sum(size for _, size in confirmed), leaves_at
            process.run(capture(captured((0, 10, 25))))
        assert archived_bytes(store) == expected_bytes(0, 25)
        assert process.confirmed[IDENTITY] == {(0, 10 * MESSAGE_SIZE), (10, 15 * MESSAGE_SIZE)}
    assert leaves_at > 8


class DiskThatLeavesInAWrite(DiskStore):
    """It goes away after the check with which a write begins."""

    def __init__(self, place: Place) -> None:
        super().__init__(LocalFileSystem(), place.path, bytes(16))
        self.whole_place = place

    def _create(self, path: Path) -> File:
        self.whole_place.take_away()
        return super()._create(path)


def test_what_was_written_into_the_wrong_directory_is_not_reported_as_stored(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.path.mkdir()
    store = DiskThatLeavesInAWrite(place)
    store.recognize()
    with pytest.raises(ArchiveGone):
        store.put_new("v1/a/b", b"1")
    assert "v1/a/b" in place.names(), "it was written, and the disk may be back before anybody looks again"


def test_a_list_of_another_directory_is_no_list_of_the_archive(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.path.mkdir()
    store = DiskStore(LocalFileSystem(), place.path, bytes(16))
    store.recognize()
    store.put_new("v1/a/b", b"1")
    place.take_away()
    with pytest.raises(ArchiveGone):
        list(store.list_objects("v1/"))
    with pytest.raises(ArchiveGone):
        store.list_names("v1/")
    place.bring_back()
    assert [found.key for found in store.list_objects("v1/")] == ["v1/a/b"]


class StoreThatIsDifferentBehindARoot(FakeStore):
    """Something happens to it as soon as it has a root."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self.behind_root: Callable[[], None] = lambda: None

    def put_new(self, key: str, data: bytes) -> bool:
        is_new = super().put_new(key, data)
        if "root" in key.split("/"):
            self.behind_root()
        return is_new


@pytest.mark.parametrize("is_emptied", [True, False])
def test_a_root_confirms_nothing_if_the_claim_has_ended_meanwhile(is_emptied: bool) -> None:
    store, file_system, successor = StoreThatIsDifferentBehindARoot(), disk(1), disk(2)
    for one in (file_system, successor):
        plant_segment(one, 0, 10)
    process = Process(store, file_system)
    process.run(capture())

    def end_claim() -> None:
        store.behind_root = lambda: None
        if is_emptied:
            # But the root, which is read back at once.
            store.objects = {key: data for key, data in store.objects.items() if "root" in key.split("/")}
        else:
            Process(store, successor, seed=2, take_over=True).run(capture(captured((0, 10))))

    store.behind_root = end_claim
    with pytest.raises(ArchiveGone if is_emptied else ArchiveTakenOver):
        process.run(capture(captured((0, 10))))
    assert not process.confirmed.get(IDENTITY)


def archived_size(store: DiskStore) -> int:
    return len(archived_bytes(store)) if ArchiveReader(store, CLUSTER).newest_root() is not None else 0


async def test_a_bucket_that_was_emptied_is_gone_until_its_objects_are_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, clock = fake_store(), ManualClock()
    async with running(tmp_path, settings_of(expiry=HOUR), store, clock) as (broker, client):
        await fill(broker, client, "a")
        assert await archiver_of(broker).run_once()
        objects = dict(store.objects)
        store.objects.clear()
        await fill(broker, client, "b")
        assert not await archiver_of(broker).run_once()
        assert not await archiver_of(broker).run_once()
        assert store.objects == {}
        assert len(errors(caplog)) == 1
        clock.advance(2 * HOUR)
        await broker.broker.retention.clean_all()
        assert bases_of(broker) == [0, 1]
        store.objects.update(objects)
        assert await archiver_of(broker).run_once()
        await broker.broker.retention.clean_all()
        assert bases_of(broker) == []
        assert [payload for _, payload in await texts(client)] == [b"a", b"b"]


async def test_a_bucket_that_was_set_back_is_gone(tmp_path: Path) -> None:
    store = fake_store()
    async with running(tmp_path, settings_of(), store) as (broker, client):
        await fill(broker, client, "a")
    older = dict(store.objects)
    async with running(tmp_path, settings_of(), store) as (broker, client):
        assert await archiver_of(broker).run_once()
        newer = dict(store.objects)
        store.objects.clear()
        store.objects.update(older)
        assert not await archiver_of(broker).run_once()
        assert archiver_of(broker).is_gone
        assert store.objects == older
        store.objects.update(newer)
        assert await archiver_of(broker).run_once()


async def test_a_bucket_that_was_set_back_to_a_time_after_the_start_is_gone_and_filled_again(tmp_path: Path) -> None:
    store, clock = fake_store(), ManualClock()
    async with running(tmp_path, settings_of(expiry=HOUR), store, clock) as (broker, client):
        await fill(broker, client, "a")
        assert await archiver_of(broker).run_once()
        older = dict(store.objects)
        await fill(broker, client, "b")
        assert await archiver_of(broker).run_once()
        store.objects = older
        assert not await archiver_of(broker).run_once()
        assert archiver_of(broker).is_gone
        clock.advance(2 * HOUR)
        await broker.broker.retention.clean_all()
        assert bases_of(broker) == [0, 1], "what was confirmed before does not count"
        assert await archiver_of(broker).run_once()
        await broker.broker.retention.clean_all()
        assert bases_of(broker) == []
        assert [payload for _, payload in await texts(client)] == [b"a", b"b"]


def test_to_take_over_is_asked_for_once() -> None:
    store, file_system = fake_store(), disk()
    plant_segment(file_system, 0, 10)
    process = Process(store, file_system, take_over=True)
    process.run(capture(captured((0, 10))))
    store.objects.clear()
    for _ in range(3):
        with pytest.raises(ArchiveGone):
            process.run(capture(captured((0, 10))))
    assert store.objects == {}, "nobody has asked for a new archive in the place of the one that is gone"


def test_a_directory_that_is_missing_is_never_made(tmp_path: Path) -> None:
    store = DiskStore(LocalFileSystem(), tmp_path / "archive", bytes(16))
    with pytest.raises(ArchiveFailure):
        store.put_new("v1/a/b", b"1")
    with pytest.raises(ArchiveGone, match="no such directory"):
        store.recognize()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_on_a_full_disk_confirms_nothing_and_goes_on_with_room() -> None:
    failures: list[str] = []
    room, is_refused = 0, True
    while is_refused:
        room += 400
        archive, file_system = FakeFileSystem(random.Random(room)), disk(room)
        archive.plant_directory(Path("/archive"))
        for first, end in ((0, 10), (10, 25)):
            plant_segment(file_system, first, end)
        process = Process(DiskStore(archive, Path("/archive"), bytes(16)), file_system, seed=room)
        process.run(capture(captured((0, 10))))
        before = process.confirmed[IDENTITY]
        archive.capacity = archive.used + room
        try:
            process.run(capture(captured((0, 10, 25))))
            is_refused = False
        except ArchiveFailure as failure:
            failures.append(str(failure))
        if is_refused:
            assert process.confirmed[IDENTITY] == before
            archive.capacity = None
            process.run(capture(captured((0, 10, 25))))
        assert process.confirmed[IDENTITY] == {(0, 10 * MESSAGE_SIZE), (10, 15 * MESSAGE_SIZE)}
        assert archived_bytes(DiskStore(archive, Path("/archive"), bytes(16))) == expected_bytes(0, 25)
    assert len(failures) > 5
    assert all("No space left" in text and "gone" not in text for text in failures), failures


async def test_who_only_looks_or_has_a_directory_of_its_own_claims_nothing(tmp_path: Path) -> None:
    """A standby that follows, and a trial server with the same settings, do not end the epoch of the server."""
    store = fake_store()
    async with running(tmp_path / "server", settings_of(), store) as (broker, client):
        await fill(broker, client, "a")
        assert await archiver_of(broker).run_once()
        for number in range(2):
            restore(store, tmp_path / f"standby {number}" / "data")
        async with running(tmp_path / "trial", settings_of(), store) as (trial, other):
            await fill(trial, other, "b")
            assert await archiver_of(trial).run_once()
            await fill(broker, client, "c")
            assert await archiver_of(broker).run_once()
            assert len(find_clusters(store)) == 2
        assert not archiver_of(broker).is_fenced
