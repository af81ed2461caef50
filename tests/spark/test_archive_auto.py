"""Reads with ``source=auto`` of a topic whose old messages only the archive has: every offset once, wherever it is."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from courser.client.sync import SyncClient
from courser.spark.archive_source import ArchiveSource
from courser.spark.data_source import CourserSource
from courser.spark.errors import ReadFailed
from courser.spark.planning import Task
from courser.spark.segment_source import SegmentSource
from courser.spark.server_source import ServerSource
from courser.spark.sources import OffsetRange
from tests.servers import PATIENCE, RunningServer
from tests.spark.topics import STREAM, client_of, make_topic, numbered, options_of, rows_of, send, source_rows
from tests.torture.process import until

PER_SEGMENT = 200
"""Messages of a segment: a third batch does not fit."""
SIZE = 400


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """With segments that are full soon, archived at once, and then deleted if their topic says so."""
    directory = tmp_path_factory.mktemp("auto")
    with RunningServer(directory, settings=settings_of(directory / "archive")) as running:
        yield running


def settings_of(archive: Path) -> dict[str, object]:
    table = "data_maintenance.archiver"
    return {
        "system.segment.size": "100 KiB",
        "data_maintenance.messages.interval": "20ms",
        f"{table}.enabled": "true",
        f"{table}.interval": "20ms",
        f"{table}.active_interval": "0",
        f"{table}.disk.path": archive,
    }


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[SyncClient]:
    with client_of(server) as client:
        yield client


def auto(server: RunningServer, topic: str, **others: object) -> dict[str, str]:
    return options_of(server, topic, **({"archive.path": server.directory / "archive"} | others))


def fill(client: SyncClient, topic: str, segment_count: int, first: int = 0) -> None:
    for number in range(first, first + segment_count * PER_SEGMENT, 100):
        send(client, topic, 0, numbered(100, SIZE, first=number))


def local_start(client: SyncClient, topic: str) -> int:
    """The first offset that is on the server's disk."""
    segments = client.get_segments(STREAM, topic, 0).segments
    return next(segment.first_offset for segment in segments if segment.location == "local")


def wait_for_start(client: SyncClient, topic: str, offset: int) -> None:
    until(lambda: local_start(client, topic) >= offset, "archiving and deleting the segments", PATIENCE)


def planned(options: dict[str, str]) -> tuple[Any, list[Any], list[OffsetRange]]:
    source = CourserSource(options)
    reader = source.reader(source.schema())
    tasks = reader.partitions()
    return reader, list(tasks), [part for task in tasks if isinstance(task, Task) for part in task.ranges]


def test_old_messages_come_from_the_archive_and_the_others_from_the_server(
    server: RunningServer, client: SyncClient
) -> None:
    make_topic(client, "old", local_retention_size=150_000)
    fill(client, "old", 5)
    send(client, "old", 0, numbered(100, SIZE, first=5 * PER_SEGMENT))
    wait_for_start(client, "old", 4 * PER_SEGMENT)
    start = local_start(client, "old")
    reader, tasks, ranges = planned(auto(server, "old"))
    kinds = [(part.start, part.end, type(part.sources[0])) for part in ranges]
    assert kinds == [(0, start, ArchiveSource), (start, 5 * PER_SEGMENT + 100, ServerSource)]
    rows = [row for task in tasks for row in rows_of(reader, task)]
    assert [row["offset"] for row in rows] == list(range(5 * PER_SEGMENT + 100))
    assert [row["payload"] for row in rows] == numbered(5 * PER_SEGMENT + 100, SIZE)
    with_files = planned(auto(server, "old", path=server.data))[2]
    assert [type(part.sources[0]) for part in with_files] == [ArchiveSource, SegmentSource, ServerSource]
    for options in (auto(server, "old", path=server.data), options_of(server, "old"), auto(server, "old")):
        assert source_rows(options) == rows
        bounds = {"startingOffsets": f'{{"0": {start - 5}}}', "endingOffsets": f'{{"0": {start + 5}}}'}
        assert source_rows(options | bounds) == rows[start - 5 : start + 5]
    assert source_rows(auto(server, "old", source="archive")) == rows[: 5 * PER_SEGMENT], "the open one is not there"


@pytest.mark.parametrize("has_files", [True, False])
def test_segments_that_move_to_the_archive_after_planning_are_read_once(
    server: RunningServer, client: SyncClient, has_files: bool
) -> None:
    topic = f"moving-{has_files}"
    make_topic(client, topic, local_retention_size=150_000)
    fill(client, topic, 4)
    wait_for_start(client, topic, 2 * PER_SEGMENT)
    options = auto(server, topic, minPartitions=4, **({"path": server.data} if has_files else {}))
    reader, tasks, ranges = planned(options)
    total = ranges[-1].end
    first, *others = tasks
    found = rows_of(reader, first)
    fill(client, topic, 4, first=4 * PER_SEGMENT)
    wait_for_start(client, topic, total)
    found += [row for task in others for row in rows_of(reader, task)]
    assert [row["offset"] for row in found] == list(range(total))
    assert [row["payload"] for row in found] == numbered(total, SIZE)


def test_a_stream_that_catches_up_reads_the_archive(server: RunningServer, client: SyncClient) -> None:
    make_topic(client, "stream", local_retention_size=1)
    fill(client, "stream", 3)
    send(client, "stream", 0, numbered(100, SIZE, first=3 * PER_SEGMENT))
    wait_for_start(client, "stream", 3 * PER_SEGMENT)
    source = CourserSource(auto(server, "stream", startingOffsets="earliest", maxOffsetsPerTrigger=400))
    reader = source.streamReader(source.schema())
    offset, found, kinds = reader.initialOffset(), [], set()
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        for task in reader.partitions(offset, end):
            assert isinstance(task, Task)
            kinds |= {type(part.sources[0]) for part in task.ranges}
            found += [row["offset"] for row in rows_of(reader, task)]
        offset = end
    assert found == list(range(3 * PER_SEGMENT + 100))
    assert kinds == {ArchiveSource, ServerSource}


def test_the_archive_of_another_server_is_refused(server: RunningServer, client: SyncClient, tmp_path: Path) -> None:
    make_topic(client, "other", local_retention_size=1)
    fill(client, "other", 2)
    wait_for_start(client, "other", PER_SEGMENT)
    with (
        RunningServer(tmp_path, settings=settings_of(tmp_path / "archive")) as another,
        client_of(another) as another_client,
    ):
        make_topic(another_client, "other")
    options = auto(server, "other", **{"archive.path": tmp_path / "archive"})
    with pytest.raises(ReadFailed, match="it is the archive of another server; check the options archive"):
        source_rows(options)


def test_a_task_that_cannot_read_the_archive_asks_the_server(server: RunningServer, client: SyncClient) -> None:
    make_topic(client, "fallback", local_retention_size=1)
    fill(client, "fallback", 3)
    wait_for_start(client, "fallback", 2 * PER_SEGMENT)
    reader, tasks, ranges = planned(auto(server, "fallback"))
    source = ranges[0].sources[0]
    assert isinstance(source, ArchiveSource)
    (object_of_the_task,) = (server.directory / "archive").glob(f"v1/*/{source.pieces[0].key}")
    # The server has it open since then; the task does not.
    source_rows(options_of(server, "fallback"))
    hidden = object_of_the_task.with_suffix(".hidden")
    object_of_the_task.rename(hidden)
    try:
        rows = [row for task in tasks for row in rows_of(reader, task)]
    finally:
        hidden.rename(object_of_the_task)
    assert [row["offset"] for row in rows] == list(range(ranges[-1].end))
