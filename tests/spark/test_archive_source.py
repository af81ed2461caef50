"""Batch reads and streams from the objects of an archive in a directory: without a server, and without Spark."""

import base64
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from courser.archive.care import plan_removals, remove
from courser.archive.disk_store import DiskStore
from courser.archive.errors import ArchiveFailure, ArchiveMissing
from courser.archive.reader import ArchiveReader, find_clusters
from courser.archive.restore_plan import OFFSET_LEAP, RestoreSelection, plan_restore
from courser.archive.restoring import Restorer
from courser.broker.settings import BrokerSettings
from courser.client.client import Client
from courser.client.messages import SendMessage
from courser.records.encryption import KEY_VARIABLE, KeyRing
from courser.spark.archive_source import ArchiveSource
from courser.spark.data_source import CourserSource
from courser.spark.errors import DataLost, ReadFailed, SourceMissing
from courser.spark.options import OptionRefused
from courser.spark.planning import Task
from courser.storage.local_files import LocalFileSystem
from courser.testing.broker import TestBroker
from tests.archive.brokers import HOUR, archiver_of, fill, partition_of, running, settings_of
from tests.archive.older_content import KINDS, take_older
from tests.fakes.clocks import ManualClock
from tests.spark.topics import rows_of, source_rows, task_rows
from tests.storage.engine import ENCRYPTION, KEY

Scene = tuple[TestBroker, Client]


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """A broker that archives to a directory when the test says so."""
    async with running(tmp_path / "data", settings_of(tmp_path / "archive"), clock=ManualClock()) as found:
        yield found


def options_of(tmp_path: Path, **others: object) -> dict[str, str]:
    given = {
        "source": "archive",
        "archive.path": tmp_path / "archive",
        "stream": "shop",
        "topic": "orders",
        "retries": 0,
    }
    return {name: str(value) for name, value in (given | others).items()}


def read(tmp_path: Path, **others: object) -> list[tuple[int, bytes]]:
    return [(row["offset"], row["payload"]) for row in source_rows(options_of(tmp_path, **others))]


def letters(text: str, first: int = 0) -> list[tuple[int, bytes]]:
    return [(offset, letter.encode()) for offset, letter in enumerate(text, first)]


async def archive(broker: TestBroker, *, with_active: bool = False) -> None:
    assert await archiver_of(broker).run_once(with_active=with_active)


async def send(client: Client, *texts: str) -> None:
    await client.send_messages("shop/orders", partitioning=0, messages=list(texts))


def prune(tmp_path: Path) -> None:
    store = DiskStore(LocalFileSystem(), tmp_path / "archive", bytes(16))
    archived = ArchiveReader(store, find_clusters(store)[0])
    remove(archived, plan_removals(archived, 2**62), lambda _: None)


def logs_of(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "archive").rglob("*.log"))


# --- what comes out -----------------------------------------------------------------------------------


async def test_it_ends_with_what_the_newest_root_has(scene: Scene, tmp_path: Path) -> None:
    broker, client = scene
    await fill(broker, client, *"abc")
    await archive(broker)
    await fill(broker, client, "d")
    assert read(tmp_path) == letters("abc")
    await archive(broker)
    assert read(tmp_path) == letters("abcd")


async def test_deleted_segments_and_pieces_of_the_open_one_are_read(scene: Scene, tmp_path: Path) -> None:
    broker, client = scene
    await fill(broker, client, *"abcd")
    for letter in "efg":
        await send(client, letter)
        await archive(broker, with_active=True)
    await partition_of(broker).trim(3)
    await archive(broker)
    assert len(logs_of(tmp_path)) == 7
    assert read(tmp_path) == letters("abcdefg")
    for start in range(7):
        for end in range(start + 1, 8):
            bounds = {"startingOffsets": f'{{"0": {start}}}', "endingOffsets": f'{{"0": {end}}}'}
            assert read(tmp_path, **bounds) == letters("abcdefg")[start:end]
    assert [len(rows) for rows in task_rows(options_of(tmp_path, minPartitions=7))] == [1] * 7


async def test_times_and_filters_narrow_what_is_read(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path / "data", settings_of(tmp_path / "archive"), clock=clock) as (broker, client):
        times = []
        for letter in "abcdef":
            clock.advance(HOUR)
            times.append(clock.now())
            await fill(broker, client, letter)
        await archive(broker)
    for offset, time in enumerate(times):
        assert read(tmp_path, startingTimestamp=time) == letters("abcdef")[offset:]
        assert read(tmp_path, startingTimestamp=time - HOUR // 2) == letters("abcdef")[offset:]
        assert read(tmp_path, endingTimestamp=time) == letters("abcdef")[:offset]
    assert read(tmp_path, startingTimestamp=times[-1] + 1) == []
    rows = source_rows(options_of(tmp_path), schema="offset BIGINT, payload BINARY")
    assert rows[3] == {"offset": 3, "payload": b"d"}


async def test_large_segments_are_read_from_any_offset(scene: Scene, tmp_path: Path) -> None:
    """Through the archived index, in ranges that do not fit one block of the cache."""
    broker, client = scene
    await client.create_stream("shop")
    await client.create_topic("shop", "orders")
    for number in range(12):
        payload = bytes([number]) * 300_000
        await client.send_messages("shop/orders", partitioning=0, messages=[payload] * 3)
    await partition_of(broker).roll()
    await archive(broker)
    for start in (0, 1, 17, 35):
        rows = read(tmp_path, startingOffsets=f'{{"0": {start}}}', batchBytes=1_000_000)
        assert rows == [(offset, bytes([offset // 3]) * 300_000) for offset in range(start, 36)]


async def test_several_epochs_and_a_restart_are_one_log(tmp_path: Path) -> None:
    for text in ("ab", "cd", "ef"):
        async with running(tmp_path / "data", settings_of(tmp_path / "archive")) as (broker, client):
            await fill(broker, client, *text)
            await archive(broker)
    assert read(tmp_path) == letters("abcdef")


async def test_the_offsets_that_a_restore_leaves_out_cost_nothing(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "archive")
    async with running(tmp_path / "lost", settings) as (broker, client):
        await fill(broker, client, *"ab")
        await archive(broker)
        shutil.copytree(tmp_path / "archive", tmp_path / "as of then")
    store = DiskStore(LocalFileSystem(), tmp_path / "as of then", bytes(16))
    archived = ArchiveReader(store, find_clusters(store)[0])
    (tmp_path / "new" / "data").mkdir(parents=True)
    Restorer(store, LocalFileSystem(), tmp_path / "new" / "data").restore(plan_restore(archived, RestoreSelection()))
    async with running(tmp_path / "new", settings_of(tmp_path / "as of then")) as (broker, client):
        await fill(broker, client, *"cd")
        await archive(broker)
    place = {"archive.path": tmp_path / "as of then"}
    found = read(tmp_path, **place)
    assert [payload for _, payload in found] == [b"a", b"b", b"c", b"d"]
    assert found[2][0] >= OFFSET_LEAP
    assert len(task_rows(options_of(tmp_path, **place))) == 1
    offset, batches = (reader := stream_of(tmp_path, **place)).initialOffset(), []
    while (step := micro_batch(reader, offset))[0] != offset:
        offset, rows = step
        batches.append(rows)
    assert batches == [[offset for offset, _ in found]]


async def test_purged_messages_are_gone(scene: Scene, tmp_path: Path) -> None:
    broker, client = scene
    await fill(broker, client, *"abc")
    await archive(broker)
    await client.purge_topic("shop", "orders")
    await fill(broker, client, *"de")
    await archive(broker)
    assert read(tmp_path) == letters("de", first=3)
    with pytest.raises(DataLost, match="the earliest available offset is 3: 2 messages are gone"):
        read(tmp_path, startingOffsets='{"0": 1}')


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_encoded_messages_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str, is_encrypted: bool
) -> None:
    settings = settings_of(tmp_path / "archive")
    if is_encrypted:
        settings = encrypted(settings)
        monkeypatch.setenv(KEY_VARIABLE, base64.b64encode(bytes(range(32))).decode())
    text = "the same words again and again " * 20
    async with running(tmp_path / "data", settings) as (broker, client):
        await client.create_stream("shop")
        await client.create_topic("shop", "orders", compression_algorithm=codec)
        await fill(broker, client, *(f"{number} {text}" for number in range(4)))
        await archive(broker)
    assert all(text.encode() not in path.read_bytes() for path in logs_of(tmp_path))
    assert read(tmp_path) == [(number, f"{number} {text}".encode()) for number in range(4)]


def encrypted(settings: BrokerSettings) -> BrokerSettings:
    return replace(settings, encryption=ENCRYPTION, keys=KeyRing([KEY]))


async def test_a_key_that_is_missing_is_named(tmp_path: Path) -> None:
    async with running(tmp_path / "data", encrypted(settings_of(tmp_path / "archive"))) as (broker, client):
        await fill(broker, client, "secret")
        await archive(broker)
    with pytest.raises(ReadFailed, match=r"could not read offsets 0 to 0: the archive: .* which is not configured"):
        read(tmp_path)


async def test_condensed_segments_have_gaps(scene: Scene, tmp_path: Path) -> None:
    broker, client = scene
    await client.create_stream("shop")
    await client.create_topic("shop", "orders", keep_latest_by_key=True)
    for number in range(4):
        messages = [SendMessage(f"{number}{key}", key=key) for key in ("x", "y", f"only {number}")]
        await client.send_messages("shop/orders", partitioning=0, messages=messages)
        await partition_of(broker).roll()
    await send(client, "open")
    await archive(broker, with_active=True)
    source = CourserSource(options_of(tmp_path))
    reader = source.reader(source.schema())
    (planned,) = reader.partitions()
    await broker.broker.condenser.condense_due()
    await archive(broker, with_active=True)
    expected = [2, 5, 8, 9, 10, 11, 12]
    assert [offset for offset, _ in read(tmp_path)] == expected
    for start in range(13):
        for end in (start + 1, 13):
            rows = read(tmp_path, startingOffsets=f'{{"0": {start}}}', endingOffsets=f'{{"0": {end}}}')
            assert [offset for offset, _ in rows] == [offset for offset in expected if start <= offset < end]
    assert [row["offset"] for row in rows_of(reader, planned)] == list(range(13)), "the old objects are still there"
    prune(tmp_path)
    assert [row["offset"] for row in rows_of(reader, planned)] == expected


async def test_several_topics_and_partitions(scene: Scene, tmp_path: Path) -> None:
    broker, client = scene
    await fill(broker, client, *"ab")
    await client.create_topic("shop", "payments", 3)
    for partition in range(2):
        await client.send_messages("shop/payments", partitioning=partition, messages=[f"p{partition}"])
    await archive(broker, with_active=True)
    rows = source_rows(options_of(tmp_path, topic="orders,payments"))
    assert [(row["topic"], row["partition"], row["payload"]) for row in rows] == [
        ("orders", 0, b"a"),
        ("orders", 0, b"b"),
        ("payments", 0, b"p0"),
        ("payments", 1, b"p1"),
    ]


# --- streams ------------------------------------------------------------------------------------------


def stream_of(tmp_path: Path, **others: object) -> Any:
    source = CourserSource(options_of(tmp_path, startingOffsets="earliest", **others))
    return source.streamReader(source.schema())


def micro_batch(reader: Any, start: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    tasks = reader.partitions(start, end) if end != start else []
    return end, [row["offset"] for task in tasks for row in rows_of(reader, task)]


async def test_a_stream_follows_the_roots(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("courser.spark.source_choice.ROOT_AGE_MAX", 0.0)
    broker, client = scene
    await client.create_stream("shop")
    await client.create_topic("shop", "orders")
    await archive(broker)
    reader = stream_of(tmp_path)
    offset = reader.initialOffset()
    for text, expected in (("abc", [0, 1, 2]), ("", []), ("de", [3, 4])):
        await fill(broker, client, *text)
        await archive(broker)
        offset, found = micro_batch(reader, offset)
        assert found == expected
    restarted = stream_of(tmp_path)
    await fill(broker, client, "f")
    await archive(broker)
    assert micro_batch(restarted, offset)[1] == [5]


async def test_a_stream_reads_in_micro_batches(scene: Scene, tmp_path: Path) -> None:
    broker, client = scene
    await fill(broker, client, *"abcdefg")
    await archive(broker)
    reader = stream_of(tmp_path, maxOffsetsPerTrigger=3)
    offset, batches = reader.initialOffset(), []
    for _ in range(3):
        offset, found = micro_batch(reader, offset)
        batches.append(found)
    assert batches == [[0, 1, 2], [3, 4, 5], [6]]


def test_a_consumer_needs_a_server(tmp_path: Path) -> None:
    with pytest.raises(OptionRefused, match='"consumer" needs a server'):
        stream_of(tmp_path, consumer="spark")


# --- what is wrong ------------------------------------------------------------------------------------


async def test_damage_names_object_and_offsets_and_can_be_skipped(scene: Scene, tmp_path: Path) -> None:
    broker, client = scene
    await fill(broker, client, *"abcd")
    await archive(broker)
    path = logs_of(tmp_path)[1]
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    key = path.relative_to(tmp_path / "archive")
    with pytest.raises(ReadFailed) as damage:
        read(tmp_path)
    assert f"the object {key} (offsets 1 to 1) in the archive {tmp_path / 'archive'} is damaged at byte 0" in str(
        damage.value
    )
    assert "expected offset 1" in str(damage.value)
    assert "courser archive verify" in str(damage.value)
    rest = [*letters("a"), *letters("cd", first=2)]
    assert read(tmp_path, onCorrupt="skip") == rest
    aside = tmp_path / "aside"
    assert read(tmp_path, onCorrupt="quarantine", quarantinePath=aside) == rest
    assert [kept.read_bytes() for kept in aside.iterdir()] == [path.read_bytes()]
    assert read(tmp_path, endingOffsets='{"0": 1}') == letters("a"), "who does not need it does not notice"


@pytest.mark.parametrize("kind", KINDS)
async def test_an_object_with_older_content_is_not_read(scene: Scene, tmp_path: Path, kind: str) -> None:
    broker, client = scene
    for letter in "abc":
        await fill(broker, client, letter)
        await client.create_stream(f"stream {letter}")
        await archive(broker)
    take_older(tmp_path / "archive", kind)
    with pytest.raises(ArchiveFailure, match="another object"):
        read(tmp_path)


async def test_an_object_that_is_missing_is_data_loss(scene: Scene, tmp_path: Path) -> None:
    broker, client = scene
    await fill(broker, client, *"abcd")
    await archive(broker)
    path = logs_of(tmp_path)[1]
    path.unlink()
    with pytest.raises(
        DataLost, match=f"offsets 1 to 1 are missing from the archive, which has no object .*{path.name}"
    ):
        read(tmp_path)
    assert read(tmp_path, failOnDataLoss="false") == [*letters("a"), *letters("cd", first=2)]


async def test_a_hole_in_the_archive_is_data_loss(scene: Scene, tmp_path: Path) -> None:
    broker, client = scene
    await fill(broker, client, *"ab")
    await archive(broker)
    await fill(broker, client, "c")
    # Without ``archive_expired``, retention does this.
    await partition_of(broker).trim(3)
    await fill(broker, client, *"de")
    await archive(broker)
    with pytest.raises(DataLost, match="offsets 2 to 2 are missing from the archive: 1 messages are gone"):
        read(tmp_path)
    assert read(tmp_path, failOnDataLoss="false") == [*letters("ab"), *letters("de", first=3)]


async def test_objects_that_were_replaced_and_pruned_after_planning_are_found_again(
    scene: Scene, tmp_path: Path
) -> None:
    broker, client = scene
    await fill(broker, client, *"ab")
    for letter in "cd":
        await send(client, letter)
        await archive(broker, with_active=True)
    source = CourserSource(options_of(tmp_path))
    reader = source.reader(source.schema())
    (task,) = reader.partitions()
    assert isinstance(task, Task)
    (part,) = task.ranges
    assert isinstance(part.sources[0], ArchiveSource)
    assert len(part.sources[0].pieces) == 4
    await partition_of(broker).roll()
    await archive(broker)
    before = len(logs_of(tmp_path))
    prune(tmp_path)
    assert len(logs_of(tmp_path)) == before - 2 == 3
    assert [row["payload"] for row in rows_of(reader, task)] == [b"a", b"b", b"c", b"d"]


async def test_names_and_places_that_do_not_exist(scene: Scene, tmp_path: Path) -> None:
    broker, client = scene
    with pytest.raises(ArchiveMissing, match="no run of the archiver has been completed yet"):
        read(tmp_path)
    await fill(broker, client, "a")
    await archive(broker)
    with pytest.raises(SourceMissing, match="topic shop/nothing does not exist in the archive"):
        read(tmp_path, topic="nothing")
    with pytest.raises(ArchiveMissing, match="there is no such directory"):
        read(tmp_path, **{"archive.path": tmp_path / "elsewhere"})
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(ArchiveMissing, match="no archive has an id that starts with 00ff00ff"):
        read(tmp_path, **{"archive.cluster": "00ff00ff"})


async def test_of_several_archives_one_must_be_named(scene: Scene, tmp_path: Path) -> None:
    broker, client = scene
    await fill(broker, client, *"ab")
    await archive(broker)
    async with running(tmp_path / "other", settings_of(tmp_path / "archive")) as (other, other_client):
        await fill(other, other_client, "c")
        await archive(other)
    with pytest.raises(ArchiveFailure, match="there are several archives; name one of") as several:
        read(tmp_path)
    found = [
        read(tmp_path, **{"archive.cluster": cluster})
        for cluster in several.value.reason.split("one of ")[1].split(", ")
    ]
    assert sorted(found) == [letters("ab"), letters("c")]


async def test_a_copy_of_the_archive_is_enough(scene: Scene, tmp_path: Path) -> None:
    broker, client = scene
    await fill(broker, client, *"abc")
    await archive(broker)
    shutil.copytree(tmp_path / "archive", tmp_path / "copy" / "archive")
    assert read(tmp_path / "copy") == letters("abc")
