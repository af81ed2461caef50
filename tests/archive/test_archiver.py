"""The archiver in a broker: nothing is deleted before it is confirmed, and clients notice nothing of a store."""

import asyncio
import errno
import random
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from courser.archive.claiming import ArchiveState, write_state
from courser.archive.objects import Origin, Piece, Seal, encode_body
from courser.archive.reader import ArchiveReader, FoundRoot, find_clusters
from courser.archive.settings import ArchiveMoment
from courser.broker.archive.archive_share import ArchiveShare, Backlog, Captured
from courser.catalog.entities import Publish, Sink
from courser.catalog.store import CatalogStore, load_state
from courser.errors import CommandRejected, CourserError, DiskFull, ErrorCode, RequestFailed, StartRefused
from courser.model import metric_table as m
from courser.model.buffers import Buffer
from courser.storage.files import FileSystem
from courser.testing.broker import TestBroker
from courser.testing.object_store import StoreFault
from tests.archive.brokers import (
    HOUR,
    archiver_of,
    backlog_of,
    fake_store,
    fill,
    partition_of,
    running,
    settings_of,
    texts,
)
from tests.fakes.clocks import ManualClock
from tests.fakes.object_store import FakeStore

PATIENCE = 30.0


def bases_of(broker: TestBroker) -> list[int]:
    return [segment.base_offset for segment in partition_of(broker).log.segments]


async def clean(broker: TestBroker) -> None:
    await broker.broker.retention.clean_all()


async def test_an_expired_segment_is_deleted_only_after_it_is_archived(tmp_path: Path) -> None:
    store, clock = fake_store(), ManualClock()
    async with running(tmp_path, settings_of(expiry=HOUR), store, clock) as (broker, client):
        await fill(broker, client, "a", "b")
        clock.advance(2 * HOUR)
        store.is_down = True
        await clean(broker)
        assert not await archiver_of(broker).run_once()
        await clean(broker)
        assert bases_of(broker) == [0, 1], "the store is down"
        assert (await backlog_of(broker)).size > 0
        assert "connection refused" in (archiver_of(broker).failure or "")
        await client.send_messages("shop/orders", partitioning=0, messages=["c"])
        store.is_down = False
        assert await archiver_of(broker).run_once()
        await clean(broker)
        assert bases_of(broker) == [2]
        archived = archiver_of(broker).share.archive_of(partition_of(broker).log)
        assert archived is not None
        assert archived.start_offset == 0, "what retention deleted can be read from the archive"
        assert await backlog_of(broker) == Backlog()


@pytest.mark.parametrize("fault", [StoreFault.REFUSED, StoreFault.CHANGED, StoreFault.LATE])
async def test_a_failed_upload_confirms_nothing(tmp_path: Path, fault: StoreFault) -> None:
    store, clock = fake_store(), ManualClock()
    async with running(tmp_path, settings_of(expiry=HOUR), store, clock) as (broker, client):
        await fill(broker, client, "a")
        clock.advance(2 * HOUR)
        store.faults.extend([None, fault])
        assert not await archiver_of(broker).run_once()
        await clean(broker)
        assert bases_of(broker) == [0]
        assert await archiver_of(broker).run_once()
        await clean(broker)
        assert bases_of(broker) == []


async def test_without_archive_expired_expired_segments_go_unarchived(tmp_path: Path) -> None:
    store, clock = fake_store(), ManualClock()
    settings = settings_of(expiry=HOUR, protects_expired=False)
    async with running(tmp_path, settings, store, clock) as (broker, client):
        await fill(broker, client, "a")
        clock.advance(2 * HOUR)
        await clean(broker)
        assert bases_of(broker) == []


async def test_at_expiry_only_expired_segments_are_archived(tmp_path: Path) -> None:
    store, clock = fake_store(), ManualClock()
    settings = settings_of(expiry=2 * HOUR, moment=ArchiveMoment.EXPIRY)
    async with running(tmp_path, settings, store, clock) as (broker, client):
        await fill(broker, client, "a")
        clock.advance(HOUR)
        await fill(broker, client, "b")
        assert await archiver_of(broker).run_once()
        assert not any("/seg/" in key for key in store.objects)
        clock.advance(HOUR)
        await clean(broker)
        assert bases_of(broker) == [0, 1], "not archived yet"
        assert await archiver_of(broker).run_once()
        await clean(broker)
        assert bases_of(broker) == [1]


async def test_a_client_cannot_delete_segments_that_are_not_archived(tmp_path: Path) -> None:
    store = fake_store()
    async with running(tmp_path, settings_of(), store) as (broker, client):
        await fill(broker, client, "a", "b")
        await client.delete_segments("shop/orders", partition_id=0, segments_count=2)
        assert bases_of(broker) == [0, 1]
        assert await archiver_of(broker).run_once()
        await client.delete_segments("shop/orders", partition_id=0, segments_count=1)
        assert bases_of(broker) == [1]


async def test_a_purge_archives_first_and_is_refused_while_the_store_is_down(tmp_path: Path) -> None:
    store = fake_store()
    async with running(tmp_path, settings_of(), store) as (broker, client):
        await fill(broker, client, "a")
        await client.send_messages("shop/orders", partitioning=0, messages=["b"])
        store.is_down = True
        with pytest.raises(RequestFailed) as refused:
            await client.purge_topic("shop/orders")
        assert refused.value.code is ErrorCode.NOT_ARCHIVED
        assert [payload for _, payload in await texts(client)] == [b"a", b"b"]
        store.is_down = False
        await client.purge_topic("shop/orders")
        assert await texts(client) == []
        assert sum("/seg/" in key and key.endswith(".log") for key in store.objects) == 2


async def test_messages_that_arrive_during_a_purge_stay(tmp_path: Path) -> None:
    """They come after the topic was archived, and before the purge is carried out."""
    store = HangingStore()
    store.answers.set()
    async with running(tmp_path, settings_of(), store) as (broker, client):
        await fill(broker, client, "a")
        await client.send_messages("shop/orders", partitioning=0, messages=["b"])
        store.hangs_at = "root/"
        store.is_asked.clear()
        store.answers.clear()
        other = await broker.connect()
        purge = asyncio.create_task(client.purge_topic("shop/orders"))
        await asyncio.get_running_loop().run_in_executor(None, store.is_asked.wait)
        await other.send_messages("shop/orders", partitioning=0, messages=["c"])
        await other.store_consumer_offset("shop/orders", partition_id=0, offset=2, consumer="late")
        store.answers.set()
        await purge
        assert await texts(client) == [(2, b"c")]
        assert (await client.get_consumer_offset("shop/orders", partition_id=0, consumer="late")).stored_offset == 2
        assert await archiver_of(broker).run_once(with_active=True)
        await client.purge_topic("shop/orders")
        assert await texts(client) == []
    reader = ArchiveReader(store, find_clusters(store)[0])
    ends = {piece.end_offset for found in reader.listed_backwards() for piece in pieces_of(reader, found)}
    assert max(ends) == 3, "every message was archived before it was deleted"


async def test_a_purge_is_not_refused_for_what_arrives_while_it_closes_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, settings_of(), fake_store()) as (broker, client):
        await fill(broker, client, "a")
        await client.send_messages("shop/orders", partitioning=0, messages=["b"])
        # The next run does not include what is still written: its time has just come.
        assert await archiver_of(broker).run_once(with_active=True)
        sender, partition = await broker.connect(), partition_of(broker)
        seal, arriving = partition.seal, ["c"]

        async def seal_beside_a_sender() -> None:
            if arriving:
                await sender.send_messages("shop/orders", partitioning=0, messages=[arriving.pop()])
            await seal()

        monkeypatch.setattr(partition, "seal", seal_beside_a_sender)
        await client.purge_topic("shop/orders")
        assert await texts(client) == [(2, b"c")], "what arrived meanwhile stays"


def pieces_of(reader: ArchiveReader, found: FoundRoot) -> Iterator[Piece]:
    for partition in found.root.partitions:
        if partition.manifest_key:
            yield from reader.manifest(partition).pieces


async def test_a_publish_that_begins_before_the_capture_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fake_store()
    async with running(tmp_path, settings_of(), store) as (broker, client):
        await fill(broker, client, "a")
        catalog = broker.broker.catalog
        look_between = catalog.between_changes
        publish = Publish(1, bytes(8), (), ())
        sink = Sink("spark", 1, 1, 0, 0)
        catalog.state.sinks[sink.name] = sink
        coming: list[Publish | None] = [publish, publish, None]

        async def begin_and_look(look: Callable[[CatalogStore], Awaitable[object]]) -> object:
            sink.open = coming.pop(0)
            return await look_between(look)

        monkeypatch.setattr(catalog, "between_changes", begin_and_look)
        assert await archiver_of(broker).run_once()
        reader = ArchiveReader(store, find_clusters(store)[0])
        root = reader.newest_root()
        assert root is not None
        archived = load_state(reader.snapshot(root.root), tmp_path)
        assert archived.sinks[sink.name].open is None
        monkeypatch.undo()
        del catalog.state.sinks[sink.name]


async def test_the_metadata_is_archived_when_it_changes(tmp_path: Path) -> None:
    store = fake_store()

    def catalogs() -> int:
        return sum("/meta/" in key for key in store.objects)

    async with running(tmp_path, settings_of(), store) as (broker, client):
        assert await archiver_of(broker).run_once()
        count = catalogs()
        assert await archiver_of(broker).run_once()
        assert catalogs() == count
        await client.create_stream("another")
        assert await archiver_of(broker).run_once()
        assert catalogs() == count + 1


async def test_a_server_that_was_replaced_refuses_writes_and_says_what_to_do(tmp_path: Path) -> None:
    store = fake_store()
    async with running(tmp_path / "old", settings_of(), store) as (broker, client):
        await fill(broker, client, "a")
        assert await archiver_of(broker).run_once()
        _take_over(store)
        assert not await archiver_of(broker).run_once()
        assert archiver_of(broker).is_fenced
        with pytest.raises(CourserError, match="take_over=true"):
            await client.send_messages("shop/orders", partitioning=0, messages=["lost"])
        with pytest.raises(CourserError):
            await client.create_stream("lost")
        assert await texts(client) == [(0, b"a")], "reads still work"
    with pytest.raises(StartRefused, match="another server has taken over"):
        async with running(tmp_path / "old", settings_of(), store):
            pass
    async with running(tmp_path / "old", settings_of(take_over=True), store) as (broker, client):
        await client.send_messages("shop/orders", partitioning=0, messages=["b"])
        assert await archiver_of(broker).run_once()


def _take_over(store: FakeStore) -> None:
    """What a server on another machine does with its first request."""
    cluster = ArchiveReader(store, find_clusters(store)[0])
    epoch = cluster.newest_epoch()
    origin = Origin(cluster=cluster.keys.cluster, epoch=epoch, nonce=b"another process.")
    key = cluster.keys.seal(epoch)
    store.put_new(key, encode_body(Seal("start", "1"), key, origin))


async def test_a_store_that_ignores_conditions_refuses_the_start(tmp_path: Path) -> None:
    store = fake_store()
    store.ignores_conditions = True
    with pytest.raises(StartRefused, match="overwrites objects"):
        async with running(tmp_path, settings_of(), store):
            pass


async def test_a_store_that_is_down_does_not_refuse_the_start(tmp_path: Path) -> None:
    store = fake_store()
    store.is_down = True
    async with running(tmp_path, settings_of(), store) as (broker, client):
        await fill(broker, client, "a")
        store.is_down = False
        assert await archiver_of(broker).run_once()
        assert archiver_of(broker).counters.upload_count == 2


async def test_confirmations_survive_a_restart(tmp_path: Path) -> None:
    store, clock = fake_store(), ManualClock()
    async with running(tmp_path, settings_of(expiry=HOUR), store, clock) as (broker, client):
        await fill(broker, client, "a")
        assert await archiver_of(broker).run_once()
    clock.advance(2 * HOUR)
    async with running(tmp_path, settings_of(expiry=HOUR), store, clock) as (broker, client):
        await clean(broker)
        assert bases_of(broker) == [0], "the archive was not asked yet"
        assert await archiver_of(broker).run_once()
        assert archiver_of(broker).counters.upload_count == 0
        await clean(broker)
        assert bases_of(broker) == []


async def test_nothing_is_remembered_of_deleted_topics(tmp_path: Path) -> None:
    async with running(tmp_path, settings_of(), fake_store()) as (broker, client):
        await fill(broker, client, "a")
        log = partition_of(broker).log
        (segment,) = log.segments
        assert await archiver_of(broker).run_once()
        assert archiver_of(broker).guard.is_archived(log, segment)
        await client.delete_topic("shop/orders")
        assert await archiver_of(broker).run_once()
        assert not archiver_of(broker).guard.is_archived(log, segment)
        assert archiver_of(broker).share.archive_of(log) is None


async def test_the_figures_of_the_archive_are_metrics(tmp_path: Path) -> None:
    store, clock = fake_store(), ManualClock()
    async with running(tmp_path, settings_of(), store, clock) as (broker, client):
        await fill(broker, client, "a")
        clock.advance(HOUR)

        figure = broker.broker.metrics.value

        await broker.broker.operating.scrapes.survey()
        assert figure(m.ARCHIVE_BACKLOG) > 0
        assert figure(m.ARCHIVE_OLDEST_AGE) == 3600
        assert figure(m.ARCHIVE_UPLOADS) == 0
        assert await archiver_of(broker).run_once()
        await broker.broker.operating.scrapes.survey()
        assert (figure(m.ARCHIVE_BACKLOG), figure(m.ARCHIVE_OLDEST_AGE), figure(m.ARCHIVE_UPLOADS)) == (0, 0, 2)
        assert figure(m.ARCHIVE_UPLOADED_BYTES) > 0
        await fill(broker, client, "b")
        store.is_down = True
        assert not await archiver_of(broker).run_once()
        assert figure(m.ARCHIVE_FAILURES) == 1


async def test_a_survey_of_the_backlog_lets_others_run(tmp_path: Path) -> None:
    async with running(tmp_path, settings_of(), fake_store()) as (broker, client):
        await client.create_stream("shop")
        await client.create_topic("shop", "orders", partitions_count=401)
        await fill(broker, client, "a", "b")
        archiver = archiver_of(broker)
        survey = archiver.share.survey()
        pause_count = 0
        while True:
            try:
                survey.send(None)
            except StopIteration:
                break
            pause_count += 1
            assert archiver.share.backlog == Backlog(), "it shows the last complete survey"
        assert pause_count > 0
        assert archiver.share.backlog.size == sum(segment.size for segment in partition_of(broker).log.segments)


class HangingStore(FakeStore):
    """Does not answer until it is told to."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self.answers = threading.Event()
        self.is_asked = threading.Event()
        self.hangs_at = ""
        """A part of the keys at which it hangs."""

    def put_new(self, key: str, data: bytes) -> bool:
        """Create an object, at last."""
        if self.hangs_at in key:
            self.is_asked.set()
            self.answers.wait()
        return super().put_new(key, data)


async def test_changes_of_metadata_do_not_wait_for_a_store_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repair of the scrubber may wait for it on the thread of the archiver, while that takes the partitions."""
    answers, is_captured, capture = threading.Event(), asyncio.Event(), ArchiveShare.capture
    repairs: list[asyncio.Future[bool]] = []

    async def capture_beside_a_repair(share: ArchiveShare, *, with_active: bool) -> Captured:
        repairs.append(asyncio.ensure_future(share.on_thread(answers.wait)))
        await asyncio.sleep(0)
        is_captured.set()
        return await capture(share, with_active=with_active)

    async with running(tmp_path, settings_of(), fake_store()) as (broker, client):
        await fill(broker, client, "a")
        monkeypatch.setattr(ArchiveShare, "capture", capture_beside_a_repair)
        run = asyncio.ensure_future(archiver_of(broker).run_once())
        await is_captured.wait()
        try:
            async with asyncio.timeout(PATIENCE):
                await client.create_stream("another")
        finally:
            answers.set()
        assert await run
        assert await repairs[0]


async def test_a_store_that_hangs_delays_neither_the_start_nor_the_stop(tmp_path: Path) -> None:
    store, settings = HangingStore(), settings_of()
    assert settings.archive is not None
    impatient = replace(settings, archive=replace(settings.archive, contact_timeout=1, last_run_timeout=1))
    async with running(tmp_path, impatient, store) as (broker, client):
        await fill(broker, client, "a")
        assert await texts(client) == [(0, b"a")]
    store.answers.set()
    async with running(tmp_path, settings, store) as (broker, client):
        assert await archiver_of(broker).run_once()
        assert await backlog_of(broker) == Backlog()


async def test_a_stop_archives_the_rest_also_if_the_store_has_failed_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = fake_store()
    async with running(tmp_path, settings_of(), store) as (broker, client):
        await fill(broker, client, "a")
        store.is_down = True
        assert not await archiver_of(broker).run_once()
        store.is_down = False
        await client.send_messages("shop/orders", partitioning=0, messages=["b"])
    root = ArchiveReader(store, find_clusters(store)[0]).newest_root()
    assert root is not None
    assert root.root.is_final
    assert "last run" not in caplog.text


class PeersOfWhichOneHasEnded:
    """Another process ends while the last run begins. What it owned can be opened by this one."""

    is_missing = True

    async def wait_for_all(self) -> None:
        if self.is_missing:
            raise CommandRejected(ErrorCode.SERVER_BUSY, "a process has ended")

    async def take_over(self) -> bool:
        was_missing, self.is_missing = self.is_missing, False
        return was_missing

    def ask_archives(self, _: object) -> Sequence[Awaitable[Any]]:
        return ()

    def tell_archives(self, _: object) -> None:
        pass


async def test_a_stop_repeats_its_last_run_with_what_an_ended_process_owned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = fake_store()
    async with running(tmp_path, settings_of(), store) as (broker, client):
        await fill(broker, client, "a")
        monkeypatch.setattr(archiver_of(broker), "_peers", PeersOfWhichOneHasEnded())
    root = ArchiveReader(store, find_clusters(store)[0]).newest_root()
    assert root is not None
    assert root.root.is_final
    assert "last run" not in caplog.text


async def test_a_stop_says_that_the_last_run_failed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = fake_store()
    async with running(tmp_path, settings_of(), store) as (broker, client):
        await fill(broker, client, "a")
        store.is_down = True
    assert "the last run was not completed" in caplog.text
    assert "connection refused" in caplog.text


async def test_a_stop_says_that_the_last_run_was_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, settings = HangingStore(), settings_of()
    assert settings.archive is not None
    store.answers.set()
    impatient = replace(settings, archive=replace(settings.archive, last_run_timeout=1))
    async with running(tmp_path, impatient, store) as (broker, client):
        await fill(broker, client, "a")
        store.answers.clear()
    store.answers.set()
    assert "the last run was not completed" in caplog.text
    assert "in time" in caplog.text


async def test_a_claim_that_the_disk_of_the_server_refuses_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [DiskFull("write", tmp_path, OSError(errno.ENOSPC, "no space"))] * 2

    def write(file_system: FileSystem, data_directory: Path, state: ArchiveState) -> None:
        if refusals:
            raise refusals.pop()
        write_state(file_system, data_directory, state)

    monkeypatch.setattr("courser.archive.claiming.write_state", write)
    async with running(tmp_path, settings_of(), fake_store()) as (broker, client):
        await fill(broker, client, "a")
        assert not await archiver_of(broker).run_once()
        assert archiver_of(broker).counters.failure_count == 1
        assert await archiver_of(broker).run_once()
        assert archiver_of(broker).failure is None


class WatchedStore(FakeStore):
    """A store whose uploads wait for ``go_on``, and then tell whether the archiver gives way to clients."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self.is_patient: Callable[[], bool] = lambda: False
        self.found: list[bool] = []
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def upload(self, key: str, parts: Iterable[Buffer]) -> None:
        self.reached.set()
        self.go_on.wait()
        self.found.append(self.is_patient())
        super().upload(key, parts)


@pytest.mark.parametrize("reason", ["nobody waits", "retention", "a purge"])
async def test_the_archiver_gives_way_unless_somebody_waits_for_it(tmp_path: Path, reason: str) -> None:
    store = WatchedStore()
    async with running(tmp_path, settings_of(), store) as (broker, client):
        archiver = archiver_of(broker)
        store.is_patient = lambda: archiver.share.pace.is_patient
        await fill(broker, client, "a")
        store.go_on.clear()
        store.reached.clear()
        run = asyncio.create_task(archiver.run_once(gives_way=True))
        await asyncio.to_thread(store.reached.wait)
        others = []
        if reason == "retention":
            archiver.guard.hurry()
        elif reason == "a purge":
            others.append(asyncio.create_task(archiver.run_once()))
            await asyncio.sleep(0)
        store.found.clear()
        store.go_on.set()
        assert all(await asyncio.gather(run, *others))
        assert set(store.found) == {reason == "nobody waits"}
        await fill(broker, client, "b")
        store.found.clear()
        assert await archiver.run_once()
        assert set(store.found) == {False}
