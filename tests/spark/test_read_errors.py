"""What goes wrong when a topic is read: at once, with the facts, and never in silence."""

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from courser.client.sync import SyncClient
from courser.errors import AuthenticationFailed, ConnectionFailed, ErrorCode, OffsetsUnavailable
from courser.spark.background_clients import with_retries
from courser.spark.data_source import CourserSource
from courser.spark.errors import DataLost, ReadFailed
from courser.spark.options import OptionRefused
from courser.spark.sources import FetchedBatches, LossRule, OffsetRange, SourceUnavailable, read_range
from courser.spark.stream_reader import StreamReader
from tests.servers import RunningServer
from tests.spark.topics import STREAM, client_of, make_topic, numbered, options_of, rows_of, send, source_rows


@pytest.fixture
def client(server: RunningServer) -> Iterator[SyncClient]:
    with client_of(server) as client:
        yield client


def stream_of(server: RunningServer, topic: str, **options: object) -> StreamReader:
    source = CourserSource(options_of(server, topic, **({"startingOffsets": "earliest"} | options)))
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StreamReader)
    return reader


def task_of(source: CourserSource) -> InputPartition:
    """The only task of a batch read."""
    (task,) = source.reader(source.schema()).partitions()
    return task


LIMIT = ReadMaxBytes(2**28)


def test_a_topic_that_does_not_exist_fails_at_once(server: RunningServer, client: SyncClient) -> None:
    with pytest.raises(ReadFailed, match="shop/nothing does not exist"):
        source_rows(options_of(server, "nothing"))
    make_topic(client, "something")
    with pytest.raises(ReadFailed, match="shop/nothing does not exist"):
        source_rows(options_of(server, "something,nothing"))
    with pytest.raises(ReadFailed, match="shop/nothing does not exist"):
        stream_of(server, "nothing").initialOffset()


def test_a_wrong_password_fails_at_once(server: RunningServer) -> None:
    options = options_of(server, "any") | {"url": f"iggy://iggy:wrong@{server.address}", "retries": "1000"}
    with pytest.raises(AuthenticationFailed):
        source_rows(options)


def test_a_server_that_is_away_is_tried_again_with_growing_pauses_and_then_given_up() -> None:
    pauses: list[float] = []

    def fail() -> None:
        raise ConnectionFailed("127.0.0.1:1", "nobody is there")

    with pytest.raises(ConnectionFailed, match="nobody is there"):
        with_retries(fail, 5, pauses.append)
    assert len(pauses) == 5
    assert sum(pauses[3:]) > sum(pauses[:2])
    assert max(pauses) <= 5.0


def test_a_server_that_comes_back_is_not_missed() -> None:
    answers: list[Callable[[], int]] = [lambda: 7]

    def work() -> int:
        if len(answers) == 1:
            answers.append(answers[0])
            raise ConnectionFailed("127.0.0.1:1", "not yet")
        return answers[1]()

    assert with_retries(work, 1, lambda _: None) == 7


def test_a_server_that_goes_away_in_mid_stream_ends_the_task_and_a_restart_does_not(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running:
        with client_of(running) as client:
            make_topic(client, "restarted")
            send(client, "restarted", 0, numbered(500, size=1000))
        source = CourserSource(options_of(running, "restarted", retries=9, batchBytes=50_000))
        batches = source.reader(source.schema()).read(task_of(source))
        count = len(next(batches))
        running.kill()
        running.start()
        assert count + sum(map(len, batches)) == 500
        impatient = CourserSource(options_of(running, "restarted", retries=0, batchBytes=50_000))
        batches = impatient.reader(impatient.schema()).read(task_of(impatient))
        next(batches)
        running.kill()
        with pytest.raises(ConnectionFailed):
            list(batches)
        running.start()


def test_an_offset_below_the_earliest_is_data_loss(server: RunningServer, client: SyncClient) -> None:
    make_topic(client, "overtaken")
    send(client, "overtaken", 0, numbered(30))
    client.purge_topic(STREAM, "overtaken")
    send(client, "overtaken", 0, numbered(5))
    options = options_of(server, "overtaken", startingOffsets='{"overtaken": {"0": 10}}')
    with pytest.raises(DataLost) as caught:
        source_rows(options)
    lost = caught.value
    assert (lost.partition, lost.wanted, lost.earliest, lost.lost) == (0, 10, 30, 20)
    assert len(source_rows(options | {"failOnDataLoss": "false"})) == 5


def test_an_offset_beyond_the_head_is_data_loss_and_never_an_endless_wait(
    server: RunningServer, client: SyncClient
) -> None:
    make_topic(client, "beyond")
    send(client, "beyond", 0, numbered(3))
    for option in ("startingOffsets", "endingOffsets"):
        options = options_of(server, "beyond", **{option: '{"beyond": {"0": 10}}'})
        with pytest.raises(DataLost, match="offset 10 is needed, but the next offset to be written is 3"):
            source_rows(options)
        rows = source_rows(options | {"failOnDataLoss": "false"})
        assert len(rows) == (0 if option == "startingOffsets" else 3)


def test_a_stream_whose_topic_was_cut_back_is_data_loss(server: RunningServer, client: SyncClient) -> None:
    make_topic(client, "cut-back")
    send(client, "cut-back", 0, numbered(3))
    start = stream_of(server, "cut-back").initialOffset() | {"p": {"0": 8}}
    with pytest.raises(DataLost, match="the topic was truncated, and 5 messages are gone"):
        stream_of(server, "cut-back").latestOffset(start, LIMIT)
    end = stream_of(server, "cut-back", failOnDataLoss="false").latestOffset(start, LIMIT)
    assert (end["p"], end["lost"]) == ({"0": 3}, {"0": 5})
    reader = stream_of(server, "cut-back", failOnDataLoss="false")
    assert reader.partitions(start, end) == []


def test_a_planned_range_that_is_beyond_the_head_when_it_is_read_is_data_loss(
    server: RunningServer, client: SyncClient
) -> None:
    make_topic(client, "replayed")
    send(client, "replayed", 0, numbered(3))
    start = stream_of(server, "replayed").initialOffset()
    end = start | {"p": {"0": 10}}
    reader = stream_of(server, "replayed")
    (task,) = reader.partitions(start, end)
    with pytest.raises(DataLost, match="offsets 3 to 9 are beyond the head"):
        rows_of(reader, task)


def test_numbers_that_no_message_has_at_the_end_of_a_partition_are_no_loss(
    server: RunningServer, client: SyncClient, tmp_path: Path
) -> None:
    make_topic(client, "crashed")
    send(client, "crashed", 0, numbered(3))
    # A copy of the files of a running server looks like the files after a power cut.
    shutil.copytree(server.data, tmp_path / "copy" / server.data.name)
    with RunningServer(tmp_path / "copy") as copy:
        reader = stream_of(copy, "crashed")
        start = reader.initialOffset()
        end = reader.latestOffset(start, LIMIT)
        assert end["p"]["0"] > 3
        (task,) = reader.partitions(start, end)
        assert len(rows_of(reader, task)) == 3


def test_a_partition_that_is_gone_is_data_loss(server: RunningServer, client: SyncClient) -> None:
    make_topic(client, "shrinks", partitions=2)
    send(client, "shrinks", 1, numbered(3))
    start = stream_of(server, "shrinks").initialOffset()
    client.delete_partitions(STREAM, "shrinks", 1)
    with pytest.raises(DataLost, match="partition 1 no longer exists, but offset 0 of it is needed"):
        stream_of(server, "shrinks").latestOffset(start, LIMIT)
    end = stream_of(server, "shrinks", failOnDataLoss="false").latestOffset(start, LIMIT)
    assert end["p"] == {"0": 0}
    with pytest.raises(DataLost, match="partition 1 no longer exists"):
        source_rows(options_of(server, "shrinks", startingOffsets='{"shrinks": {"1": 0}}'))


def test_a_checkpoint_of_another_topic_or_version_is_refused(server: RunningServer, client: SyncClient) -> None:
    make_topic(client, "mine")
    start = stream_of(server, "mine").initialOffset()
    with pytest.raises(ReadFailed, match="the checkpoint is for topic 00112233"):
        stream_of(server, "mine").latestOffset(start | {"topic_id": "00112233"}, LIMIT)
    with pytest.raises(ReadFailed, match="offsets of version 3, but this release reads versions 1 and 2"):
        stream_of(server, "mine").latestOffset(start | {"v": 3}, LIMIT)
    with pytest.raises(ReadFailed, match="offsets of version None"):
        stream_of(server, "mine").latestOffset({"offset": 3}, LIMIT)
    with pytest.raises(ReadFailed, match="could not parse the offsets"):
        stream_of(server, "mine").latestOffset({"v": 1, "topic_id": "00", "p": {"zero": 1}}, LIMIT)


def test_a_name_with_a_comma_in_it_can_be_read(server: RunningServer, client: SyncClient) -> None:
    for topic, count in (("orders", 1), ("orders, all", 2)):
        make_topic(client, topic)
        send(client, topic, 0, numbered(count))
    assert [row["topic"] for row in source_rows(options_of(server, r"orders\, all"))] == ["orders, all"] * 2
    assert len(source_rows(options_of(server, r"orders\, all,orders"))) == 3


def test_a_topic_that_is_created_again_between_planning_and_reading_is_noticed(
    server: RunningServer, client: SyncClient
) -> None:
    make_topic(client, "swapped")
    send(client, "swapped", 0, numbered(3))
    source = CourserSource(options_of(server, "swapped"))
    reader = source.reader(source.schema())
    (task,) = reader.partitions()
    client.delete_topic(STREAM, "swapped")
    with pytest.raises(ReadFailed, match="deleted while being read"):
        rows_of(reader, task)
    make_topic(client, "swapped")
    send(client, "swapped", 0, numbered(3))
    with pytest.raises(ReadFailed, match="deleted and recreated while being read"):
        rows_of(reader, task)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("offset STRING", 'column "offset" is bigint, not string'),
        ("value BINARY", 'unknown column "value"'),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(server: RunningServer, schema: str, message: str) -> None:
    with pytest.raises(OptionRefused, match=message):
        source_rows(options_of(server, "any"), schema)


# --- a task gets what was planned, or says that it did not -------------------------------------------


class Given:
    """A place that gives what a test says."""

    def __init__(self, *steps: int | Exception) -> None:
        self._steps = list(steps)

    def fetch(self, partition: int, start: int, end: int) -> Iterator[FetchedBatches]:
        while self._steps:
            step = self._steps.pop(0)
            if isinstance(step, Exception):
                raise step
            yield FetchedBatches(memoryview(b""), step)


def gone(first: int, end: int) -> OffsetsUnavailable:
    return OffsetsUnavailable(ErrorCode.OFFSET_GONE, first_offset=first, end_offset=end, reason="deleted")


def read_all(*sources: Any, fails: bool = True) -> list[int]:
    wanted = OffsetRange(4, 10, 100, tuple(sources))
    return [fetched.next_offset for fetched in read_range(wanted, LossRule("shop/orders", fails=fails))]


def test_a_task_that_reads_fewer_rows_than_planned_fails() -> None:
    with pytest.raises(ReadFailed, match="offsets 10 to 99 were planned, but only offsets below 60 were received: 40"):
        read_all(Given(30, 60))


def test_a_place_that_is_not_there_gives_way_to_the_next_one() -> None:
    assert read_all(Given(SourceUnavailable("no such file")), Given(50, 100)) == [50, 100]
    assert read_all(Given(30, SourceUnavailable("it went away")), Given(100)) == [30, 100]
    with pytest.raises(ReadFailed, match="could not read offsets 30 to 99: it went away"):
        read_all(Given(30, SourceUnavailable("it went away")))


def test_what_is_gone_inside_a_range_is_skipped_only_if_that_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLost) as caught:
        read_all(Given(30, gone(30, 50), 100))
    assert (caught.value.wanted, caught.value.earliest, caught.value.lost) == (30, 50, 20)
    with caplog.at_level(logging.WARNING):
        assert read_all(Given(30, gone(30, 50), 100), fails=False) == [30, 100]
    assert "offsets 30 to 49 are deleted: 20 messages are gone" in caplog.text
    assert read_all(Given(gone(10, 500)), fails=False) == []


def test_a_limit_of_everything_overrides_all_others(server: RunningServer, client: SyncClient) -> None:
    make_topic(client, "all-of-it")
    send(client, "all-of-it", 0, numbered(100))
    reader = stream_of(server, "all-of-it", maxOffsetsPerTrigger=10)
    start = reader.initialOffset()
    assert reader.latestOffset(start, LIMIT)["p"] == {"0": 10}
    assert reader.latestOffset(start, ReadAllAvailable())["p"] == {"0": 100}
