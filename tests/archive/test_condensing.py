"""Topics that keep the latest message by key, on a server with an archive: both have the same, and nothing is lost."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from courser.archive.care import plan_removals, remove
from courser.archive.errors import ArchiveFailure
from courser.archive.reader import ArchiveReader, find_clusters
from courser.archive.restore_plan import RestoreSelection, plan_restore
from courser.archive.restoring import Restorer
from courser.archive.settings import ArchiveMoment
from courser.broker.settings import BrokerSettings
from courser.client.client import Client
from courser.client.messages import PollingStrategy, SendMessage
from courser.storage.local_files import LocalFileSystem
from courser.storage.paths import log_path
from courser.testing.broker import TestBroker
from courser.testing.object_store import WRITE_TIME
from tests.archive.brokers import HOUR, archiver_of, fake_store, partition_of, running, settings_of
from tests.archive.test_restore import restore
from tests.archive.writing import (
    CLUSTER,
    IDENTITY,
    Process,
    archived_bytes,
    capture,
    captured,
    condensed_bytes,
    disk,
    expected_bytes,
    plant_condensed,
    plant_segment,
)
from tests.fakes.clocks import ManualClock
from tests.fakes.object_store import FakeStore, StoreKilled
from tests.handlers.messaging import damage

Row = tuple[int, bytes]


def settings(**options: object) -> BrokerSettings:
    return replace(settings_of(**options), tombstone_delay=HOUR)  # type: ignore[arg-type]


async def fill(broker: TestBroker, client: Client, *segments: str) -> None:
    """A sealed segment per text. Words are messages: ``a1`` has the key ``a``, ``a`` alone is its tombstone."""
    await client.create_stream("shop", if_not_exists=True)
    await client.create_topic("shop", "rows", if_not_exists=True, keep_latest_by_key=True)
    for segment in segments:
        for word in segment.split():
            message = SendMessage(word.encode() if len(word) > 1 else b"", key=word[0])
            await client.send_messages("shop/rows", partitioning=0, messages=[message])
        await partition_of(broker).roll()


async def rows(client: Client) -> list[Row]:
    found: list[Row] = []
    strategy = PollingStrategy.First()
    while messages := await client.poll_messages(
        "shop/rows", None, 0, strategy, 100, auto_commit=False, skip_missing=True
    ):
        found += [(message.offset, message.payload) for message in messages]
        strategy = PollingStrategy.Offset(messages[-1].offset + 1)
    return found


async def archive(broker: TestBroker) -> None:
    assert await archiver_of(broker).run_once()


async def condense(broker: TestBroker) -> None:
    await broker.broker.condenser.condense_due()


def reader_of(store: FakeStore) -> ArchiveReader:
    return ArchiveReader(store, find_clusters(store)[0])


def logs_in(store: FakeStore) -> list[str]:
    return sorted(key for key in store.objects if key.endswith(".log"))


UPDATES = ("a1 b1 z1", "a2 b2 z2", "c1 z3")
ALL = [*enumerate((b"a1", b"b1", b"z1", b"a2", b"b2", b"z2", b"c1", b"z3"))]
LATEST = [ALL[number] for number in (2, 3, 4, 5, 6, 7)]
"""The last message of a segment stays, and so does the newest segment."""


async def test_only_what_is_archived_is_condensed_and_the_archive_follows(tmp_path: Path) -> None:
    store = fake_store()
    async with running(tmp_path, settings(), store) as (broker, client):
        await fill(broker, client, *UPDATES)
        await condense(broker)
        assert await rows(client) == ALL, "the archive has nothing yet that supersedes these messages"
        await archive(broker)
        await condense(broker)
        assert await rows(client) == LATEST
        log = partition_of(broker).log
        guard = archiver_of(broker).guard
        assert not guard.is_archived(log, log.segments[0]), "the archive has the segment as it was before"
        assert guard.deletable_end(log, 3) == 0
        await archive(broker)
        assert guard.deletable_end(log, 6) == 6
        await partition_of(broker).trim(6)
        assert await rows(client) == LATEST, "the archive has what the server had"
        for count in range(1, 7):
            last = await client.poll_messages(
                "shop/rows", None, 0, PollingStrategy.Last(), count, auto_commit=False, skip_missing=True
            )
            assert [message.offset for message in last] == [offset for offset, _ in LATEST[-count:]]
        bounds = (await client.get_partition_bounds("shop/rows")).partitions[0]
        assert (bounds.first_offset, bounds.message_count) == (0, len(LATEST))


async def test_a_condensed_topic_comes_back_condensed_and_an_earlier_time_as_it_was(tmp_path: Path) -> None:
    store, clock = fake_store(), ManualClock()
    async with running(tmp_path / "old", settings(), store, clock) as (broker, client):
        await fill(broker, client, *UPDATES)
        clock.advance(HOUR)
        await archive(broker)
        before = clock.now()
        clock.advance(HOUR)
        await condense(broker)
        await archive(broker)
    for name, selection, expected in (
        ("now", RestoreSelection(), LATEST),
        ("then", RestoreSelection(until=before), ALL),
        ("between", RestoreSelection(until=before + HOUR // 2), ALL),
    ):
        restore(store, tmp_path / name / "data", selection)
        async with running(tmp_path / name, settings(), fake_store(2), clock) as (_, client):
            assert await rows(client) == expected


async def test_a_standby_follows_a_segment_that_became_smaller(tmp_path: Path) -> None:
    store, target = fake_store(), tmp_path / "new" / "data"
    target.mkdir(parents=True)
    restorer = Restorer(store, LocalFileSystem(), target)
    async with running(tmp_path / "old", settings(), store) as (broker, client):
        await fill(broker, client, *UPDATES)
        await archive(broker)
        restorer.restore(plan_restore(reader_of(store), RestoreSelection()))
        await condense(broker)
        await archive(broker)
        restorer.restore(plan_restore(reader_of(store), RestoreSelection()), is_update=True)
    async with running(tmp_path / "new", settings(), fake_store(2)) as (broker, client):
        assert await rows(client) == LATEST
        await broker.broker.scrubber.scrub()
        assert broker.broker.scrubber.counters.damage_count == 0


async def test_a_tombstone_stays_until_the_archive_has_none_of_its_older_messages(tmp_path: Path) -> None:
    store, clock = fake_store(), ManualClock()
    async with running(tmp_path, settings(), store, clock) as (broker, client):
        await fill(broker, client, "a1 z1", "a z2", "z3")
        clock.advance(2 * HOUR)
        await archive(broker)
        await condense(broker)
        expected = [(1, b"z1"), (2, b""), (3, b"z2"), (4, b"z3")]
        assert await rows(client) == expected, "the archive still has a1"
        await condense(broker)
        assert await rows(client) == expected
        await archive(broker)
        await condense(broker)
        assert await rows(client) == [expected[0], *expected[2:]]
        await condense(broker)
        await archive(broker)
        await partition_of(broker).trim(4)
        assert await rows(client) == [expected[0], *expected[2:]]


async def test_a_tombstone_stays_while_only_the_archive_has_older_messages(tmp_path: Path) -> None:
    store, clock = fake_store(), ManualClock()
    async with running(tmp_path, settings(), store, clock) as (broker, client):
        await fill(broker, client, "a1 z1")
        await archive(broker)
        await partition_of(broker).trim(2)
        await fill(broker, client, "a z2", "z3")
        clock.advance(2 * HOUR)
        for _ in range(3):
            await archive(broker)
            await condense(broker)
        assert await rows(client) == [(0, b"a1"), (1, b"z1"), (2, b""), (3, b"z2"), (4, b"z3")]


async def test_a_start_without_the_store_condenses_nothing(tmp_path: Path) -> None:
    store = fake_store()
    async with running(tmp_path, settings(), store) as (broker, client):
        await fill(broker, client, *UPDATES)
        await archive(broker)
    store.is_down = True
    async with running(tmp_path, settings(), store) as (broker, client):
        await condense(broker)
        assert await rows(client) == ALL
        store.is_down = False
        await archive(broker)
        await condense(broker)
        assert await rows(client) == LATEST


async def test_with_archive_at_expiry_segments_are_condensed_before_they_are_archived(tmp_path: Path) -> None:
    store = fake_store()
    async with running(tmp_path, settings(moment=ArchiveMoment.EXPIRY), store) as (broker, client):
        await fill(broker, client, *UPDATES)
        await condense(broker)
        assert await rows(client) == LATEST
        await archive(broker)
        assert logs_in(store) == []
        guard = archiver_of(broker).guard
        assert guard.deletable_end(partition_of(broker).log, 6) == 0
        await archive(broker)
        assert guard.deletable_end(partition_of(broker).log, 6) == 6
        await partition_of(broker).trim(6)
        assert await rows(client) == LATEST


async def test_a_condensed_segment_is_repaired_only_by_its_own_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = fake_store()
    async with running(tmp_path, settings(), store) as (broker, client):
        await fill(broker, client, *UPDATES)
        await archive(broker)
        await condense(broker)
        path = log_path(partition_of(broker).log.directory, 0)
        intact = path.read_bytes()
        damage(path)
        scrubber = broker.broker.scrubber
        await scrubber.scrub()
        assert scrubber.counters.repair_count == 0
        assert "no copy of a damaged segment was found" in caplog.text
        assert await rows(client) == LATEST[1:], "the message is damaged, and no superseded one is back"
        path.write_bytes(intact)
        partition_of(broker).log.segments[0].damages = ()
        await archive(broker)
        damage(path)
        await scrubber.scrub()
        assert scrubber.counters.repair_count == 1
        assert await rows(client) == LATEST
        assert path.read_bytes() == intact


async def test_the_old_version_is_removed_when_no_restore_needs_it(tmp_path: Path) -> None:
    store, clock = fake_store(), ManualClock()
    async with running(tmp_path, settings(), store, clock) as (broker, client):
        await fill(broker, client, *UPDATES)
        await archive(broker)
        old = logs_in(store)[0]
        clock.advance(HOUR)
        await condense(broker)
        await archive(broker)
        reader = reader_of(store)
        remove(reader, plan_removals(reader, clock.now() - 1), lambda _: None)
        assert old in store.objects, "the state of that time needs it"
        remove(reader, plan_removals(reader, clock.now()), lambda _: None)
        assert old not in store.objects
        await partition_of(broker).trim(6)
        assert await rows(client) == LATEST


# --- the writer ---


def versions(store: FakeStore) -> list[str]:
    return [key for key in logs_in(store) if f"{0:020d}-{10:020d}" in key]


def test_prune_leaves_a_new_version_alone_that_is_about_to_be_named() -> None:
    store, file_system = FakeStore(random.Random(1)), disk()
    plant_segment(file_system, 0, 10)
    process = Process(store, file_system)
    process.run(capture(captured((0, 10))))
    (old,) = versions(store)
    condensed = replace(captured((0, 10)), segments=(plant_condensed(file_system, 0, 10),))
    store.kill_at = store.write_count + 4
    with pytest.raises(StoreKilled):
        process.run(capture(condensed, metadata=None))
    store.kill_at = None
    assert len(versions(store)) == 2
    reader = ArchiveReader(store, CLUSTER)
    remove(reader, plan_removals(reader, 10**18), lambda _: None)
    assert len(versions(store)) == 2, "one is named, and one is about to be"
    process.run(capture(condensed, metadata=None))
    remove(reader, plan_removals(reader, 10**18), lambda _: None)
    assert old not in versions(store)
    assert archived_bytes(store) == condensed_bytes(0, 10)


@pytest.mark.parametrize("is_killed_before", [True, False])
def test_a_kill_at_any_write_leaves_one_of_both_versions(is_killed_before: bool) -> None:
    kill_at = 0
    while True:
        kill_at += 1
        store, file_system = FakeStore(random.Random(1)), disk()
        plant_segment(file_system, 0, 10)
        Process(store, file_system, seed=1).run(capture(captured((0, 10))))
        condensed = replace(captured((0, 10)), segments=(plant_condensed(file_system, 0, 10),))
        store.kill_at, store.is_killed_before = store.write_count + kill_at, is_killed_before
        process = Process(store, file_system, seed=2)
        try:
            process.run(capture(condensed))
        except StoreKilled:
            file_system.power_cut()
        else:
            assert kill_at > 7, "every write was a kill point"
            return
        is_confirmed = (0, len(condensed_bytes(0, 10))) in process.confirmed.get(IDENTITY, ())
        store.kill_at = None
        found = archived_bytes(store)
        assert found in ([condensed_bytes(0, 10)] if is_confirmed else [condensed_bytes(0, 10), expected_bytes(0, 10)])
        Process(store, file_system, seed=3).run(capture(condensed))
        assert archived_bytes(store) == condensed_bytes(0, 10)
        assert len(versions(store)) == 2, (kill_at, "the new one is found, and not uploaded again")
        assert not store.overwritten
        reader = ArchiveReader(store, CLUSTER)
        remove(reader, plan_removals(reader, 10**18), lambda _: None)
        assert len(versions(store)) == 1, kill_at
        assert archived_bytes(store) == condensed_bytes(0, 10)


@pytest.mark.parametrize("seed", range(30))
def test_faults_at_random_never_mix_two_versions(seed: int) -> None:
    """Replies are lost, requests arrive late and lists are late while a segment is archived, condensed, archived."""
    store, file_system = FakeStore(random.Random(seed), fault_rate=0.3, list_delay=seed % 5 * WRITE_TIME), disk(seed)
    plant_segment(file_system, 0, 10)
    process = Process(store, file_system, seed)
    step = captured((0, 10))
    is_condensed, attempt = False, 0
    while True:
        attempt += 1
        assert attempt < 200
        try:
            process.run(capture(step))
        except ArchiveFailure:
            if attempt % 5 == 4:
                process = Process(store, file_system, seed + 100 * attempt)
            continue
        if is_condensed:
            break
        step, is_condensed = replace(step, segments=(plant_condensed(file_system, 0, 10),)), True
    assert archived_bytes(store) == condensed_bytes(0, 10)
    assert process.confirmed[IDENTITY] == {(0, len(condensed_bytes(0, 10)))}
    store.fault_rate = 0
    Process(store, file_system, 10_000).run(capture(step))
    reader = ArchiveReader(store, CLUSTER)
    remove(reader, plan_removals(reader, 10**18), lambda _: None)
    assert archived_bytes(store) == condensed_bytes(0, 10)
