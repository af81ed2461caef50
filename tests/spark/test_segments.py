"""Batch reads from the files of segments: the same messages as from the server, and nothing in silence."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from courser.client.sync import SyncClient
from courser.errors import ConnectionFailed
from courser.spark.data_source import CourserSource
from courser.spark.errors import DataLost, ReadFailed
from courser.spark.options import OptionRefused
from courser.spark.planning import Task
from courser.spark.segment_source import SegmentSource
from tests.servers import PATIENCE, RunningServer
from tests.spark.topics import (
    STREAM,
    client_of,
    make_topic,
    numbered,
    options_of,
    rows_of,
    send,
    source_rows,
    task_rows,
)

BATCH_COUNT = 12
MESSAGE_COUNT = 100
TOTAL = BATCH_COUNT * MESSAGE_COUNT


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """With segments that are full soon."""
    settings = {"system.segment.size": "100 KiB"}
    with RunningServer(tmp_path_factory.mktemp("segments"), settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[SyncClient]:
    with client_of(server) as client:
        yield client


def fill(client: SyncClient, topic: str) -> None:
    """Several closed segments, and an open one."""
    make_topic(client, topic)
    for number in range(BATCH_COUNT):
        send(client, topic, 0, numbered(MESSAGE_COUNT, size=250, first=number * MESSAGE_COUNT))
    deadline = time.monotonic() + PATIENCE
    while not all(segment.is_sealed for segment in client.get_segments(STREAM, topic, 0).segments[:-1]):
        assert time.monotonic() < deadline, "the full segments are not sealed"
    assert len(client.get_segments(STREAM, topic, 0).segments) >= 3


def local(server: RunningServer, topic: str, **options: object) -> dict[str, str]:
    return options_of(server, topic, **({"path": server.data} | options))


def offline(server: RunningServer, topic: str, **options: object) -> dict[str, str]:
    return {
        "source": "segments",
        "path": str(server.data),
        "stream": STREAM,
        "topic": topic,
        **{name: str(value) for name, value in options.items()},
    }


def directory_of(client: SyncClient, server: RunningServer, topic: str) -> Path:
    return server.data / client.get_segments(STREAM, topic, 0).directory


def logs_of(client: SyncClient, server: RunningServer, topic: str) -> list[Path]:
    return sorted(directory_of(client, server, topic).glob("*.log"))


def test_files_give_the_same_rows_as_the_server(server: RunningServer, client: SyncClient) -> None:
    fill(client, "same")
    expected = source_rows(options_of(server, "same"))
    assert [row["payload"] for row in expected] == numbered(TOTAL, size=250)
    assert source_rows(local(server, "same")) == expected
    assert source_rows(offline(server, "same")) == expected


def test_several_topics_are_read_from_files(server: RunningServer, client: SyncClient) -> None:
    fill(client, "first")
    fill(client, "second")
    bounds = {"startingOffsets": '{"second": {"0": 333}}', "endingOffsets": '{"first": {"0": 777}}'}
    expected = [("first", offset) for offset in range(777)] + [("second", offset) for offset in range(333, TOTAL)]
    from_server = source_rows(options_of(server, "first,second", **bounds))
    assert [(row["topic"], row["offset"]) for row in from_server] == expected
    assert [row["payload"] for row in from_server] == numbered(777, 250) + numbered(TOTAL - 333, 250, first=333)
    assert source_rows(local(server, "first,second", **bounds)) == from_server
    assert source_rows(offline(server, "first,second", **bounds)) == from_server
    assert len(task_rows(offline(server, "first,second", minPartitions=7))) == 7


def test_auto_takes_closed_segments_from_files_and_the_rest_from_the_server(
    server: RunningServer, client: SyncClient
) -> None:
    fill(client, "auto")
    source = CourserSource(local(server, "auto"))
    tasks = source.reader(source.schema()).partitions()
    ranges = [part for task in tasks if isinstance(task, Task) for part in task.ranges]
    segments = client.get_segments(STREAM, "auto", 0).segments
    from_files = [part for part in ranges if isinstance(part.sources[0], SegmentSource)]
    assert [(part.start, part.end) for part in from_files] == [
        (segment.first_offset, segment.next_offset) for segment in segments if segment.is_sealed
    ]
    assert ranges[-1].end == TOTAL
    assert len(ranges[-1].sources) == 1


def test_a_stream_that_catches_up_takes_closed_segments_from_files_too(
    server: RunningServer, client: SyncClient
) -> None:
    fill(client, "stream")
    source = CourserSource(local(server, "stream", startingOffsets="earliest", maxOffsetsPerTrigger=700))
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    tasks = reader.partitions(start, end)
    sources = [part.sources[0] for task in tasks if isinstance(task, Task) for part in task.ranges]
    assert any(isinstance(source, SegmentSource) for source in sources)
    assert [row["offset"] for task in tasks for row in rows_of(reader, task)] == list(range(700))


@pytest.mark.parametrize("size", [300, 5_000, 30_000, 100_000])
def test_batches_of_all_sizes_are_read_whatever_is_read_at_a_time(
    server: RunningServer, client: SyncClient, size: int
) -> None:
    topic = f"sizes-{size}"
    make_topic(client, topic)
    expected = []
    for number in range(60):
        payloads = numbered(1 + number * 7 % 40, size=10 + number * 31 % 900, first=number)
        send(client, topic, 0, payloads)
        expected += payloads
    assert [row["payload"] for row in source_rows(offline(server, topic, batchBytes=size))] == expected


def test_a_range_begins_and_ends_inside_batches_and_segments(server: RunningServer, client: SyncClient) -> None:
    fill(client, "range")
    chosen = {"startingOffsets": '{"range": {"0": 333}}', "endingOffsets": '{"range": {"0": 777}}'}
    for options in (local(server, "range", **chosen), offline(server, "range", **chosen)):
        rows = source_rows(options)
        assert [row["offset"] for row in rows] == list(range(333, 777))
        assert [row["payload"] for row in rows] == numbered(444, size=250, first=333)


def test_a_time_is_found_in_files(server: RunningServer, client: SyncClient) -> None:
    fill(client, "times")
    all_rows = source_rows(options_of(server, "times"))
    time = all_rows[450]["timestamp"]
    expected = [row["offset"] for row in all_rows if row["timestamp"] >= time]
    for options in (offline(server, "times"), options_of(server, "times")):
        rows = source_rows(options | {"startingTimestamp": time.isoformat()})
        assert [row["offset"] for row in rows] == expected
        rows = source_rows(options | {"endingTimestamp": time.isoformat()})
        assert [row["offset"] for row in rows] == list(range(expected[0]))


def test_ranges_are_split_into_tasks(server: RunningServer, client: SyncClient) -> None:
    fill(client, "split")
    tasks = task_rows(local(server, "split", maxBytesPerPartition="40 KB"))
    assert len(tasks) > 6
    assert [row["offset"] for rows in tasks for row in rows] == list(range(TOTAL))
    assert len(task_rows(local(server, "split", minPartitions=5))) == 5


def test_a_data_directory_is_read_without_a_server(tmp_path: Path, server: RunningServer, client: SyncClient) -> None:
    fill(client, "copied")
    shutil.copytree(server.data, tmp_path / "copy", ignore=shutil.ignore_patterns("lock"))
    rows = source_rows(offline(server, "copied") | {"path": str(tmp_path / "copy")})
    assert [row["offset"] for row in rows] == list(range(TOTAL))


def test_a_task_that_cannot_read_the_files_asks_the_server(server: RunningServer, client: SyncClient) -> None:
    fill(client, "elsewhere")
    rows = source_rows(local(server, "elsewhere") | {"path": "/somewhere/that/is/not/there"})
    assert [row["offset"] for row in rows] == list(range(TOTAL))


def test_a_segment_that_is_gone_since_planning_follows_the_rule_of_data_loss(
    server: RunningServer, client: SyncClient
) -> None:
    fill(client, "gone")
    readers = {}
    for fails in ("true", "false"):
        source = CourserSource(local(server, "gone", failOnDataLoss=fails))
        reader = source.reader(source.schema())
        readers[fails] = reader, reader.partitions()
    first = client.get_segments(STREAM, "gone", 0).segments[0]
    client.delete_segments(STREAM, "gone", 0, 1)
    reader, (task,) = readers["true"]
    with pytest.raises(DataLost, match=f"offsets 0 to {first.next_offset - 1} are deleted") as caught:
        rows_of(reader, task)
    assert caught.value.lost == first.next_offset
    reader, (task,) = readers["false"]
    assert [row["offset"] for row in rows_of(reader, task)] == list(range(first.next_offset, TOTAL))


def test_a_file_that_is_missing_between_others_is_data_loss(
    tmp_path: Path, server: RunningServer, client: SyncClient
) -> None:
    fill(client, "hole")
    segments = client.get_segments(STREAM, "hole", 0).segments
    shutil.copytree(server.data, tmp_path / "copy", ignore=shutil.ignore_patterns("lock"))
    copied = tmp_path / "copy" / directory_of(client, server, "hole").relative_to(server.data)
    (copied / f"{segments[1].first_offset:020d}.log").unlink()
    options = offline(server, "hole") | {"path": str(tmp_path / "copy")}
    with pytest.raises(DataLost, match=f"{segments[1].message_count} messages are gone"):
        source_rows(options)
    offsets = [row["offset"] for row in source_rows(options | {"failOnDataLoss": "false"})]
    assert offsets == [*range(segments[1].first_offset), *range(segments[1].next_offset, TOTAL)]


@pytest.mark.parametrize("position", [20, 240, 300], ids=["header", "hash", "body"])
def test_damage_is_an_error_that_names_segment_position_and_offset(
    server: RunningServer, client: SyncClient, position: int
) -> None:
    topic = f"damaged-{position}"
    fill(client, topic)
    path = logs_of(client, server, topic)[1]
    flip(path, position)
    with pytest.raises(ReadFailed) as caught:
        source_rows(local(server, topic))
    assert f"{path} is damaged at byte 0 (expected offset {int(path.stem)})" in str(caught.value)
    rows = source_rows(local(server, topic, onCorrupt="skip"))
    assert [row["offset"] for row in rows] == [
        *range(int(path.stem)),
        *range(int(path.stem) + MESSAGE_COUNT, TOTAL),
    ]


def test_damaged_bytes_can_be_kept(tmp_path: Path, server: RunningServer, client: SyncClient) -> None:
    fill(client, "kept-aside")
    path = logs_of(client, server, "kept-aside")[1]
    flip(path, 300)
    options = local(server, "kept-aside", onCorrupt="quarantine", quarantinePath=str(tmp_path / "aside"))
    skipped = source_rows(local(server, "kept-aside", onCorrupt="skip"))
    # Twice: a task may be tried again.
    for _ in range(2):
        assert source_rows(options) == skipped
        (kept,) = (tmp_path / "aside").iterdir()
        assert kept.name.endswith(f"-0-{path.stem}-0.damaged")
        assert path.read_bytes().startswith(kept.read_bytes())
        assert kept.stat().st_size > 300


@pytest.mark.parametrize("given", [{"onCorrupt": "quarantine"}, {"quarantinePath": "/nowhere"}], ids=["path", "rule"])
def test_a_quarantine_needs_its_folder(server: RunningServer, given: dict[str, str]) -> None:
    with pytest.raises(OptionRefused, match="require each other"):
        source_rows(local(server, "any", **given))


def test_bodies_are_not_hashed_if_nobody_wants_it(server: RunningServer, client: SyncClient) -> None:
    fill(client, "unverified")
    flip(logs_of(client, server, "unverified")[0], 400)
    assert len(source_rows(local(server, "unverified", verify="off"))) == TOTAL


def test_a_file_that_was_cut_is_an_error(server: RunningServer, client: SyncClient) -> None:
    fill(client, "cut")
    path = logs_of(client, server, "cut")[0]
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(ReadFailed, match="is damaged at byte"):
        source_rows(local(server, "cut"))


def test_an_index_that_is_damaged_is_not_needed(server: RunningServer, client: SyncClient) -> None:
    fill(client, "indexed")
    for path in directory_of(client, server, "indexed").glob("*.index"):
        if path.stat().st_size:
            flip(path, 100)
    rows = source_rows(local(server, "indexed", startingOffsets='{"indexed": {"0": 150}}'))
    assert [row["offset"] for row in rows] == list(range(150, TOTAL))


def test_a_topic_that_is_not_in_the_files_is_named(server: RunningServer) -> None:
    with pytest.raises(ReadFailed, match="topic shop/nothing does not exist in this data directory"):
        source_rows(offline(server, "nothing"))


def test_files_need_a_path() -> None:
    with pytest.raises(OptionRefused, match='"source=segments" needs "path"'):
        source_rows({"source": "segments", "stream": STREAM, "topic": "any"})


def test_without_a_server_only_files_can_be_read(server: RunningServer, client: SyncClient) -> None:
    fill(client, "away")
    away = {"url": "iggy://iggy:iggy@127.0.0.1:1", "retries": "0"}
    with pytest.raises(ConnectionFailed):
        source_rows(local(server, "away") | away)
    assert len(source_rows(offline(server, "away"))) == TOTAL


def flip(path: Path, position: int) -> None:
    """Change one bit."""
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))
