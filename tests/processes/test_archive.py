"""The archive of a server with several processes: each archives its topics, one writes the roots, all obey them."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from courser.archive.disk_store import DiskStore
from courser.archive.keys import ArchiveKeys
from courser.archive.objects import Manifest, decode_body
from courser.archive.reader import find_clusters
from courser.client.client import Client, connect
from courser.client.messages import PollingStrategy
from courser.errors import CourserError, ErrorCode
from courser.storage.local_files import LocalFileSystem
from tests.processes.processes import children_of
from tests.servers import RunningServer
from tests.torture.process import until

PROCESS_COUNT = 3
PATIENCE = 120.0
SIZE = 400_000
"""Of a payload: three fill a segment."""


def settings_of(archive: Path, **more: Any) -> dict[str, object]:
    return {
        "server.processes": PROCESS_COUNT,
        "data_maintenance.archiver.enabled": "true",
        "data_maintenance.archiver.path": archive,
        "data_maintenance.archiver.interval": "50 ms",
        "data_maintenance.messages.interval": "50 ms",
    } | more


@asynccontextmanager
async def client_of(server: RunningServer) -> AsyncIterator[Client]:
    async with asyncio.timeout(PATIENCE), connect(f"iggy://iggy:iggy@{server.address}") as client:
        yield client


async def make_topics(client: Client, **options: Any) -> list[str]:
    """One topic for each process."""
    await client.create_stream("shop")
    topics = [f"shop/topic-{number}" for number in range(PROCESS_COUNT)]
    for topic in topics:
        await client.create_topic(topic, partitions_count=1, segment_size="1 MiB", **options)
    return topics


def payload(number: int) -> str:
    return f"{number} ".ljust(SIZE, "x")


async def send(client: Client, topics: list[str], numbers: range) -> None:
    for number in numbers:
        for topic in topics:
            await client.send_messages(topic, None, 0, [payload(number)])


async def read(client: Client, topic: str, offset: int = 0) -> list[str]:
    found: list[str] = []
    while True:
        polled = await client.poll_messages(topic, None, 0, PollingStrategy.Offset(offset), 1000, auto_commit=False)
        if not polled:
            return found
        found += [message.text() for message in polled]
        offset = polled[-1].offset + 1


async def until_archived(client: Client, topics: list[str]) -> None:
    """Wait until only the archive has the sealed segments."""
    for topic in topics:
        while not await is_archived_alone(client, topic):  # noqa: ASYNC110 - the server works beside it
            await asyncio.sleep(0.05)


async def is_archived_alone(client: Client, topic: str) -> bool:
    segments = (await client.get_segments(topic, partition_id=0)).segments
    assert len(segments) > 1
    return all(found.location == "remote" for found in segments[:-1])


async def test_every_process_reads_and_deletes_what_it_has_archived(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with RunningServer(tmp_path / "server", settings=settings_of(archive)) as server:
        async with client_of(server) as client:
            topics = await make_topics(client, local_retention_size=1)
            await send(client, topics, range(9))
            await until_archived(client, topics)
            assert len(writers_of_manifests(archive)) == PROCESS_COUNT
            for topic in topics:
                assert await read(client, topic) == [payload(number) for number in range(9)]
            # A process that is started again knows it, too.
            for number, process_id in enumerate(children_of(server), start=1):
                os.kill(process_id, signal.SIGKILL)
                await until_replaced(server, number, process_id)
        async with client_of(server) as client:
            for topic in topics:
                assert await read_patiently(client, topic) == [payload(number) for number in range(9)]
            await send(client, topics, range(9, 15))
            await until_archived(client, topics)
            for topic in topics:
                assert await read(client, topic) == [payload(number) for number in range(15)]
            metrics = await client.get_metrics()
            assert figure(metrics, "courser_archive_uploads_total") >= 2 * PROCESS_COUNT
        assert server.stop() == 0


def writers_of_manifests(archive: Path) -> set[bytes]:
    """The nonces of the processes that have written manifests."""
    store = DiskStore(LocalFileSystem(), archive, bytes(16))
    keys = ArchiveKeys(find_clusters(store)[0])
    manifests = [(found.key, store.read(found.key)) for found in store.list_objects(keys.all_manifests)]
    return {decode_body(data, key, Manifest)[0].nonce for key, data in manifests}


async def until_replaced(server: RunningServer, number: int, old: int) -> None:
    """Wait until another process has the number of one that was killed."""

    def is_replaced() -> bool:
        children = children_of(server)
        return len(children) == PROCESS_COUNT - 1 and children[number - 1] != old

    await asyncio.to_thread(until, is_replaced, "the restart", PATIENCE)


async def read_patiently(client: Client, topic: str) -> list[str]:
    """Read. A restart may take longer than a request waits for it."""
    while True:
        try:
            return await read(client, topic)
        except CourserError as error:
            if getattr(error, "code", None) is not ErrorCode.SERVER_BUSY:
                raise


def figure(text: str, name: str) -> float:
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


async def test_a_lost_directory_is_restored_with_the_topics_of_all_processes(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    server = RunningServer(tmp_path / "server", settings=settings_of(archive))
    with server:
        async with client_of(server) as client:
            topics = await make_topics(client)
            await send(client, topics, range(5))
            for topic in topics:
                await client.store_consumer_offset(topic, None, 0, 3, consumer="reader")
        # A clean stop archives the rest.
        assert server.stop() == 0
    shutil.rmtree(tmp_path / "server" / "local_data")
    restored = RunningServer(
        tmp_path / "restored",
        settings=settings_of(archive, **{"data_maintenance.archiver.restore_on_start": "true"}),
    )
    with restored:
        async with client_of(restored) as client:
            for topic in topics:
                assert await read(client, topic) == [payload(number) for number in range(5)]
                stored = await client.get_consumer_offset(topic, None, 0, consumer="reader")
                assert stored is not None
                assert stored.stored_offset == 3


async def test_a_purge_waits_for_the_archive_in_every_process(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    settings = settings_of(archive, **{"data_maintenance.archiver.interval": "1 h"})
    with RunningServer(tmp_path / "server", settings=settings) as server:
        async with client_of(server) as client:
            topics = await make_topics(client)
            await send(client, topics, range(4))
            before = count_of(archive)
            for topic in topics:
                await client.purge_topic(topic)
                assert await read(client, topic, 4) == []
            assert count_of(archive) >= before + 2 * PROCESS_COUNT
            # Nobody can delete what is not archived.
            await send(client, topics, range(4))
            archive.rename(tmp_path / "away")
            archive.write_text("not a directory")
            for topic in topics:
                with pytest.raises(CourserError) as raised:
                    await client.purge_topic(topic)
                assert getattr(raised.value, "code", None) is ErrorCode.NOT_ARCHIVED
                assert len(await read(client, topic, 4)) == 4


async def test_no_process_deletes_anything_while_the_archive_is_gone(tmp_path: Path) -> None:
    archive, away = tmp_path / "archive", tmp_path / "away"
    with RunningServer(tmp_path / "server", settings=settings_of(archive)) as server:
        async with client_of(server) as client:
            topics = await make_topics(client)
            await send(client, topics, range(9))
            for topic in topics:
                await until_deletable(client, topic, 1)
            archive.rename(away)
            archive.mkdir()
            while not figure(await client.get_metrics(), "courser_archive_gone"):  # noqa: ASYNC110 - the server's work
                await asyncio.sleep(0.01)
            before = [await local_count(client, topic) for topic in topics]
            for topic in topics:
                await client.delete_segments(topic, partition_id=0, segments_count=1)
            assert [await local_count(client, topic) for topic in topics] == before
            assert list(archive.iterdir()) == [], "nothing is written there"
            archive.rmdir()
            away.rename(archive)
            for topic in topics:
                await until_deletable(client, topic, 1)
                assert await read(client, topic) == [payload(number) for number in range(9)]
            assert not figure(await client.get_metrics(), "courser_archive_gone")
        assert server.stop() == 0


async def until_deletable(client: Client, topic: str, count: int) -> None:
    """Delete so many segments, as soon as they are archived."""
    wanted = await local_count(client, topic) - count
    while await local_count(client, topic) > wanted:
        await client.delete_segments(topic, partition_id=0, segments_count=count)
        await asyncio.sleep(0.01)


async def local_count(client: Client, topic: str) -> int:
    """How many segments of a topic are on the disk of the server."""
    segments = (await client.get_segments(topic, partition_id=0)).segments
    return sum(found.location != "remote" for found in segments)


def count_of(archive: Path) -> int:
    """The archived logs."""
    return sum(1 for path in archive.rglob("*.log*") if path.is_file())


async def test_all_processes_refuse_writes_when_another_server_has_taken_over(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with RunningServer(tmp_path / "server", settings=settings_of(archive)) as server:
        async with client_of(server) as client:
            topics = await make_topics(client)
            await send(client, topics, range(4))
            await until_uploaded(client)
            shutil.copytree(tmp_path / "server" / "local_data", tmp_path / "copy" / "local_data")
            take_over = settings_of(archive, **{"data_maintenance.archiver.take_over": "true"})
            with RunningServer(tmp_path / "copy", settings=take_over):
                for topic in topics:
                    await until_refused(client, topic)
                # One that is started again refuses them, too.
                old = children_of(server)[0]
                os.kill(old, signal.SIGKILL)
                await until_replaced(server, 1, old)
                async with client_of(server) as other:
                    for topic in topics:
                        await until_refused(other, topic)
                        assert len(await read_patiently(other, topic)) >= 4


async def until_uploaded(client: Client) -> None:
    # The server works beside it.
    while figure(await client.get_metrics(), "courser_archive_uploads_total") < PROCESS_COUNT:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def until_refused(client: Client, topic: str) -> None:
    error = None
    while error is None or getattr(error, "code", None) is ErrorCode.SERVER_BUSY:
        try:
            await client.send_messages(topic, None, 0, ["late"])
        except CourserError as refusal:
            error = refusal
    assert "another server has taken over" in str(error)


async def test_processes_may_be_killed_whenever_they_archive(tmp_path: Path) -> None:
    """What was acknowledged is read from the disk or the archive, and is restored from the archive alone."""
    archive = tmp_path / "archive"
    server = RunningServer(tmp_path / "server", settings=settings_of(archive))
    with server:
        async with client_of(server) as client:
            topics = await make_topics(client, local_retention_size=1)
        is_over = asyncio.Event()
        senders = [asyncio.create_task(send_until(is_over, server, topic)) for topic in topics]
        for number in [*range(1, PROCESS_COUNT), *range(1, PROCESS_COUNT)]:
            await until_more_is_archived(archive)
            old = children_of(server)[number - 1]
            os.kill(old, signal.SIGKILL)
            await until_replaced(server, number, old)
        is_over.set()
        counts = await asyncio.gather(*senders)
        expected: dict[str, list[str]] = {}
        async with client_of(server) as client:
            await until_archived(client, topics)
            for topic, count in zip(topics, counts, strict=True):
                expected[topic] = await read_patiently(client, topic)
                assert list(dict.fromkeys(expected[topic])) == [payload(number) for number in range(count)]
        assert server.stop() == 0
    shutil.rmtree(tmp_path / "server" / "local_data")
    restoring = settings_of(archive, **{"data_maintenance.archiver.restore_on_start": "true"})
    with RunningServer(tmp_path / "restored", settings=restoring) as restored:
        async with client_of(restored) as client:
            for topic in topics:
                assert await read(client, topic) == expected[topic]


async def until_more_is_archived(archive: Path) -> None:
    before = count_of(archive)
    await asyncio.to_thread(until, lambda: count_of(archive) > before, "an upload", PATIENCE)


async def send_until(is_over: asyncio.Event, server: RunningServer, topic: str) -> int:
    """Send one message after another, each until it is acknowledged: it may be stored twice. Returns their number."""
    count = 0
    while not is_over.is_set():
        try:
            async with client_of(server) as client:
                while not is_over.is_set():
                    await client.send_messages(topic, None, 0, [payload(count)])
                    count += 1
                    await asyncio.sleep(0.1)
        except CourserError:
            # Its process is being restarted.
            await asyncio.sleep(0.1)
    return count
