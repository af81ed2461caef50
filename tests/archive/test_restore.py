"""Restores: what comes back, also after an interruption, and the disaster drills."""

import base64
import dataclasses
import hashlib
import os
import shutil
from pathlib import Path

import pytest

from courser.api import commands as c
from courser.api.replies import Sent
from courser.archive.errors import ArchiveDamaged, ArchiveFailure
from courser.archive.reader import ArchiveReader, find_clusters
from courser.archive.restore_need import is_unfinished
from courser.archive.restore_plan import OFFSET_LEAP, RestoreSelection, plan_restore
from courser.archive.restoring import Restorer
from courser.archive.store import Store
from courser.client.client import Client
from courser.client.messages import PollingStrategy, SendMessage
from courser.errors import StartRefused
from courser.model.messaging import ToPartition
from courser.model.permissions import GlobalPermissions, Permissions
from courser.records.batch import NewMessage, build_batch
from courser.records.encryption import KeyRing, parse_key
from courser.records.producers import BatchProducer
from courser.records.stored_body import Encryption
from courser.storage.local_files import LocalFileSystem
from courser.testing.broker import TestBroker
from tests.archive.brokers import HOUR, archiver_of, fake_store, fill, partition_of, running, settings_of, texts
from tests.broker.open_partitions import until
from tests.fakes.clocks import ManualClock


async def load(broker: TestBroker, client: Client) -> None:
    """Two streams, users with permissions, groups, and messages with headers in sealed and open segments."""
    for stream in ("shop", "plant"):
        await client.create_stream(stream)
        await client.create_topic(stream, "orders", partitions_count=2)
        await client.create_consumer_group(f"{stream}/orders", name="billing")
        for number in range(30):
            message = SendMessage(f"{stream} {number}".encode() * 20, headers={"number": str(number)})
            await client.send_messages(f"{stream}/orders", partitioning=number % 2, messages=[message])
            if number % 10 == 9:
                await roll_all(broker)
        await client.store_consumer_offset(f"{stream}/orders", partition_id=0, offset=7, consumer="audit")
    await client.create_user("reader", "a long password", permissions=Permissions(GlobalPermissions(read_streams=True)))


async def roll_all(broker: TestBroker) -> None:
    for topic in broker.broker.partitions:
        for partition in topic.partitions:
            await partition.roll()


async def digest(client: Client) -> str:
    """A hash of all that a client can see: messages with offsets, times, ids and headers, users, offsets, options."""
    seen = hashlib.sha256()
    for stream in await client.get_streams():
        for topic in await client.get_topics(stream.name):
            place = f"{stream.name}/{topic.name}"
            seen.update(repr((stream.stream_id, stream.name, topic.topic_id, topic.name, topic.created_at)).encode())
            stored = await client.get_consumer_offset(place, partition_id=0, consumer="audit")
            seen.update(repr(stored.stored_offset).encode())
            groups = await client.get_consumer_groups(place)
            seen.update(repr([(group.group_id, group.name) for group in groups]).encode())
            for partition_id in range(topic.partition_count):
                for message in await everything(client, place, partition_id):
                    seen.update(repr(message).encode())
    for user in await client.get_users():
        details = await client.get_user(user.user_id)
        seen.update(repr((user.user_id, user.name, details.permissions)).encode())
    return seen.hexdigest()


async def everything(client: Client, place: str, partition_id: int) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    strategy = PollingStrategy.First()
    while True:
        messages = await client.poll_messages(
            place, None, partition_id, strategy, 1000, auto_commit=False, skip_missing=True
        )
        if not messages:
            return found
        found += [
            (message.offset, message.timestamp, message.id, message.payload, message.raw_headers)
            for message in messages
        ]
        strategy = PollingStrategy.Offset(messages[-1].offset + 1)


def restore(store: Store, target: Path, selection: RestoreSelection | None = None, *, is_forced: bool = False) -> None:
    """What ``courser archive restore`` does."""
    target.mkdir(exist_ok=True, parents=True)
    plan = plan_restore(ArchiveReader(store, find_clusters(store)[0]), selection or RestoreSelection())
    Restorer(store, LocalFileSystem(), target, part_size=1000).restore(plan, is_forced=is_forced)


async def test_drill_1_everything_comes_back_in_another_directory(tmp_path: Path) -> None:
    store = fake_store()
    async with running(tmp_path / "old", settings_of(), store) as (broker, client):
        await load(broker, client)
        before = await digest(client)
        assert await archiver_of(broker).run_once(with_active=True)
    shutil.rmtree(tmp_path / "old")
    restore(store, tmp_path / "new" / "data")
    async with running(tmp_path / "new", settings_of(), store) as (broker, client):
        assert await digest(client) == before
        sent = await client.send_messages("shop/orders", partitioning=0, messages=["after"])
        assert sent.base_offset == 15, "the server had stopped cleanly, so no offset is left out"
        assert (await everything(client, "shop/orders", 0))[-1][0] == sent.base_offset
        assert await archiver_of(broker).run_once(with_active=True)


async def test_a_restored_partition_knows_its_producers(tmp_path: Path) -> None:
    store, numbers = fake_store(), list[int]()

    async def send(client: Client, sequence: int, text: str) -> int:
        batch = build_batch([NewMessage(text.encode())])
        batch.producer = BatchProducer(7, 0, sequence, 1)
        sent = await client._link.request(c.SendMessages("shop", "orders", ToPartition(0), [batch]))
        assert isinstance(sent, Sent)
        numbers.append(client._link.draw_producer_id())
        return sent.base_offset

    async with running(tmp_path / "old", settings_of(), store) as (broker, client):
        await fill(broker, client)
        assert [await send(client, 0, "a"), await send(client, 1, "b")] == [0, 1]
        await roll_all(broker)
        assert await send(client, 2, "c") == 2
        assert await archiver_of(broker).run_once(with_active=True)
    shutil.rmtree(tmp_path / "old")
    restore(store, tmp_path / "new" / "data")
    async with running(tmp_path / "new", settings_of(), store) as (broker, client):
        assert [await send(client, 2, "c"), await send(client, 1, "b"), await send(client, 0, "a")] == [2, 1, 0]
        assert await send(client, 3, "d") == 3
        assert [payload for _, payload in await texts(client)] == [b"a", b"b", b"c", b"d"]
    assert len(set(numbers)) == len(numbers)


async def test_a_partition_whose_directory_was_lost_stays_in_the_archive(tmp_path: Path) -> None:
    store = fake_store()
    async with running(tmp_path / "old", settings_of(), store) as (broker, client):
        await load(broker, client)
        before = await everything(client, "shop/orders", 0)
        assert await archiver_of(broker).run_once(with_active=True)
        lost = partition_of(broker).log.directory
    shutil.rmtree(lost)
    async with running(tmp_path / "old", settings_of(), store) as (broker, client):
        assert await archiver_of(broker).run_once(with_active=True)
    restore(store, tmp_path / "new" / "data")
    async with running(tmp_path / "new", settings_of(), store) as (broker, client):
        assert await everything(client, "shop/orders", 0) == before
        sent = await client.send_messages("shop/orders", partitioning=0, messages=["after"])
        assert sent.base_offset > OFFSET_LEAP, "nobody knows what was lost with the directory"


async def test_drill_2_a_lost_machine_loses_at_most_what_came_after_the_last_run(tmp_path: Path) -> None:
    store = fake_store()
    async with running(tmp_path / "old", settings_of(), store) as (broker, client):
        await fill(broker, client, "sealed")
        await client.send_messages("shop/orders", partitioning=0, messages=["open"])
        assert await archiver_of(broker).run_once(with_active=True)
        await client.send_messages("shop/orders", partitioning=0, messages=["lost"])
        store.is_down = True
    store.is_down = False
    restore(store, tmp_path / "new" / "data")
    async with running(tmp_path / "new", settings_of(), store) as (broker, client):
        assert await texts(client) == [(0, b"sealed"), (1, b"open")]
        sent = await client.send_messages("shop/orders", partitioning=0, messages=["after"])
        assert sent.base_offset >= OFFSET_LEAP, "offset 2 was confirmed for a message that is lost"
        assert [payload for _, payload in await texts(client)] == [b"sealed", b"open", b"after"]


async def test_drill_3_a_plain_copy_of_the_bucket_is_enough(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    async with running(tmp_path / "old", settings_of(archive)) as (broker, client):
        await load(broker, client)
        before = await digest(client)
        assert await archiver_of(broker).run_once(with_active=True)
    shutil.copytree(archive, tmp_path / "new" / "data")
    with pytest.raises(StartRefused, match="recreate_missing_state"):
        async with running(tmp_path / "new", settings_of(archive)):
            pass
    async with running(tmp_path / "new", settings_of(archive, recreate_missing_state=True)) as (broker, client):
        assert await digest(client) == before
    async with running(tmp_path / "new", settings_of(archive)) as (broker, client):
        assert await digest(client) == before


async def test_a_copy_that_was_made_during_a_run_is_restored_as_of_the_run_before(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    async with running(tmp_path / "old", settings_of(archive)) as (broker, client):
        await fill(broker, client, "a")
        assert await archiver_of(broker).run_once()
        manifests = set(archive.rglob("man/*/*/*"))
        await fill(broker, client, "b")
        assert await archiver_of(broker).run_once()
    for path in set(archive.rglob("man/*/*/*")) - manifests:
        path.unlink()
    shutil.copytree(archive, tmp_path / "new" / "data")
    async with running(tmp_path / "new", settings_of(tmp_path / "other", recreate_missing_state=True)) as (_, client):
        assert await texts(client) == [(0, b"a")]


async def test_drill_4_the_old_primary_returns_and_is_fenced(tmp_path: Path) -> None:
    store = fake_store()
    async with running(tmp_path / "old", settings_of(), store) as (broker, client):
        await fill(broker, client, "a")
        assert await archiver_of(broker).run_once()
        restore(store, tmp_path / "new" / "data")
        async with running(tmp_path / "new", settings_of(), store) as (successor, successor_client):
            await successor_client.send_messages("shop/orders", partitioning=0, messages=["b"])
            assert await archiver_of(successor).run_once(with_active=True)
            assert not await archiver_of(broker).run_once()
            assert archiver_of(broker).is_fenced
            assert await archiver_of(successor).run_once()
    with pytest.raises(StartRefused, match="another server has taken over"):
        async with running(tmp_path / "old", settings_of(), store):
            pass


async def test_an_empty_server_restores_itself_at_its_start(tmp_path: Path) -> None:
    store = fake_store()
    settings = settings_of(restore_on_start=True)
    async with running(tmp_path / "old", settings, store) as (broker, client):
        await fill(broker, client, "a", "b")
    async with running(tmp_path / "new", settings, store) as (broker, client):
        assert await texts(client) == [(0, b"a"), (1, b"b")]
        await fill(broker, client, "c")
    async with running(tmp_path / "new", settings, store) as (broker, client):
        assert [payload for _, payload in await texts(client)] == [b"a", b"b", b"c"], "restored only once"


async def test_an_empty_server_does_not_start_empty_while_the_store_is_down(tmp_path: Path) -> None:
    store = fake_store()
    store.is_down = True
    with pytest.raises(StartRefused, match="connection refused"):
        async with running(tmp_path, settings_of(restore_on_start=True), store):
            pass


async def test_some_topics_are_restored_without_the_archive(tmp_path: Path) -> None:
    store = fake_store()
    async with running(tmp_path / "old", settings_of(), store) as (broker, client):
        await load(broker, client)
    restore(store, tmp_path / "new" / "data", RestoreSelection(topics=("plant/*",)))
    async with running(tmp_path / "new", settings_of(), store) as (broker, client):
        assert [stream.name for stream in await client.get_streams()] == ["plant"]
        assert len(await everything(client, "plant/orders", 0)) == 15
        assert await archiver_of(broker).run_once()
    assert len(find_clusters(store)) == 2, "it has its own archive: the other one keeps all topics"
    with pytest.raises(ArchiveFailure, match="no such topic"):
        restore_first(store, tmp_path / "none", RestoreSelection(topics=("nothing/*",)))


def restore_first(store: Store, target: Path, selection: RestoreSelection) -> None:
    target.mkdir()
    reader = next(
        reader
        for cluster in find_clusters(store)
        if (reader := ArchiveReader(store, cluster)).newest_root() is not None
    )
    Restorer(store, LocalFileSystem(), target).restore(plan_restore(reader, selection))


async def test_a_restore_up_to_a_time_leaves_out_later_messages_and_changes(tmp_path: Path) -> None:
    store, clock = fake_store(), ManualClock()
    async with running(tmp_path / "old", settings_of(), store, clock) as (broker, client):
        await fill(broker, client, "first")
        assert await archiver_of(broker).run_once()
        clock.advance(HOUR)
        await client.send_messages("shop/orders", partitioning=0, messages=["second"])
        wanted = clock.now()
        clock.advance(HOUR)
        await client.send_messages("shop/orders", partitioning=0, messages=["third"])
        await client.create_stream("later")
        assert await archiver_of(broker).run_once(with_active=True)
    restore(store, tmp_path / "new" / "data", RestoreSelection(until=wanted))
    async with running(tmp_path / "new", settings_of(), store, clock) as (broker, client):
        assert await texts(client) == [(0, b"first"), (1, b"second")]
        assert [stream.name for stream in await client.get_streams()] == ["shop"]
    reader = ArchiveReader(store, find_clusters(store)[0])
    for found in reader.listed_backwards():
        around = reader.roots_around(found.root.time)
        assert [root.root.time for root in around if root is not None] == [found.root.time] * 2
    with pytest.raises(ArchiveFailure, match="after that time"):
        restore_first(store, tmp_path / "none", RestoreSelection(until=1))


async def test_existing_data_is_only_replaced_by_force_and_is_kept(tmp_path: Path) -> None:
    store = fake_store()
    target = tmp_path / "new"
    async with running(tmp_path / "old", settings_of(), store) as (broker, client):
        await fill(broker, client, "a")
    async with running(target, settings_of(tmp_path / "other")) as (broker, client):
        await fill(broker, client, "other")
    with pytest.raises(StartRefused, match="--force"):
        restore(store, target / "data")
    restore(store, target / "data", is_forced=True)
    async with running(target, settings_of(), store) as (broker, client):
        assert await texts(client) == [(0, b"a")]
    assert (target / "data" / "replaced" / "metadata" / "journal.wal").exists()


async def test_an_interrupted_restore_is_not_started_and_continues(tmp_path: Path) -> None:
    store = fake_store()
    target = tmp_path / "new" / "data"
    async with running(tmp_path / "old", settings_of(), store) as (broker, client):
        await fill(broker, client, "a" * 3000, "b" * 3000)
    segments = sorted(key for key in store.objects if key.endswith(".log"))
    kept = store.objects[segments[-1]]
    store.objects[segments[-1]] = bytes(len(kept))
    with pytest.raises(ArchiveDamaged, match="not what was archived"):
        restore(store, target)
    assert is_unfinished(LocalFileSystem(), target)
    with pytest.raises(StartRefused, match="interrupted"):
        async with running(tmp_path / "new", settings_of(tmp_path / "other")):
            pass
    store.objects[segments[-1]] = kept
    plan = plan_restore(ArchiveReader(store, find_clusters(store)[0]), RestoreSelection())
    progress = Restorer(store, LocalFileSystem(), target).restore(plan)
    assert progress.downloaded_size == len(kept), "the first segment was there already"
    async with running(tmp_path / "new", settings_of(), store) as (broker, client):
        assert await texts(client) == [(0, b"a" * 3000), (1, b"b" * 3000)]


async def test_a_standby_follows(tmp_path: Path) -> None:
    store = fake_store()
    target = tmp_path / "new" / "data"
    target.mkdir(parents=True)
    restorer = Restorer(store, LocalFileSystem(), target)

    def follow() -> int:
        plan = plan_restore(ArchiveReader(store, find_clusters(store)[0]), RestoreSelection())
        return restorer.restore(plan, is_update=True).downloaded_size

    async with running(tmp_path / "old", settings_of(), store) as (broker, client):
        await fill(broker, client, "a")
        assert await archiver_of(broker).run_once()
        first = follow()
        assert first
        await client.send_messages("shop/orders", partitioning=0, messages=["b"])
        assert await archiver_of(broker).run_once(with_active=True)
        assert 0 < follow() <= first
        await client.send_messages("shop/orders", partitioning=0, messages=["c"])
        await client.create_topic("shop", "short-lived")
        assert await archiver_of(broker).run_once(with_active=True)
        assert 0 < follow() <= first, "only the new piece"
        await client.delete_topic("shop/short-lived")
        topics = partition_of(broker).log.directory.parents[2]
        await until(lambda: len(list(topics.iterdir())) == 1)
        assert await archiver_of(broker).run_once()
        follow()
    restore(store, target)
    async with running(tmp_path / "new", settings_of(), store) as (broker, client):
        assert [payload for _, payload in await texts(client)] == [b"a", b"b", b"c"]
        assert len(await client.get_topics("shop")) == 1


async def test_encrypted_and_compressed_messages_are_archived_as_they_are(tmp_path: Path) -> None:
    key = parse_key(base64.b64encode(bytes(range(32))).decode())
    encryption = Encryption(key, os.urandom)
    settings = dataclasses.replace(settings_of(), encryption=encryption, keys=KeyRing([key]))
    store, clock = fake_store(), ManualClock()
    async with running(tmp_path / "old", settings, store, clock) as (broker, client):
        await fill(broker, client, "secret " * 100, "second")
        await client.update_topic("shop/orders", compression_algorithm="gzip")
        await client.send_messages("shop/orders", partitioning=0, messages=["compressed " * 100])
        wanted = clock.now()
        assert await archiver_of(broker).run_once()
        clock.advance(HOUR)
        await client.send_messages("shop/orders", partitioning=0, messages=["later"])
    assert not any(b"secret" in data for data in store.objects.values())
    restore(store, tmp_path / "new" / "data", RestoreSelection(until=wanted))
    async with running(tmp_path / "new", settings, store, clock) as (_, client):
        expected = [b"secret " * 100, b"second", b"compressed " * 100]
        assert [payload for _, payload in await texts(client)] == expected
