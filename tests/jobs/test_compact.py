"""Compact on Spark: one message for each key, the latest, in a topic or in Parquet."""

from pathlib import Path

import polars
import pytest
from pyspark.sql import SparkSession

from courser import SendMessage
from courser.jobs.compact import TargetInUse, compact
from tests.jobs.topics import ORIGIN, all_messages, connected, make_topic, options_of
from tests.servers import RunningServer

KEYS = 20
ROUNDS = 30


@pytest.fixture
def history(server: RunningServer, request: pytest.FixtureRequest) -> str:
    """Every key thirty times, its messages in the partition that belongs to it; and two without a key."""
    topic: str = request.node.name[:150]
    with connected(server) as client:
        make_topic(client, topic, partitions=3)
        with client.producer("shop", topic) as producer:
            for number in range(ROUNDS):
                for key in range(KEYS):
                    producer.send(f"{key}:{number}", key=f"key-{key}", timestamp=ORIGIN, headers={"n": number})
        client.send_messages("shop", topic, 0, [b"keyless", b"too"])
        client.send_messages("shop", topic, 1, [SendMessage(b"", key="key-3")])
    return topic


def test_the_latest_message_of_each_key_goes_to_the_partition_of_its_key(
    spark: SparkSession, server: RunningServer, history: str
) -> None:
    target = options_of(server, f"{history} compacted", createTopic="3")
    report = compact(spark, options_of(server, history), topic=target, empty_deletes=True)
    assert (report.read_count, report.key_count) == (KEYS * ROUNDS + 3, KEYS - 1)
    assert (report.deleted_count, report.keyless_count) == (1, 2)
    with connected(server) as client:
        found = {part: all_messages(client, f"{history} compacted", part) for part in range(3)}
        homes = {one.key: part for part in range(3) for one in all_messages(client, history, part)}
    messages = {one.key: one for part in found.values() for one in part}
    assert {key: one.payload for key, one in messages.items()} == {
        b"key-%d" % key: b"%d:%d" % (key, ROUNDS - 1) for key in range(KEYS) if key != 3
    }
    assert sum(map(len, found.values())) == KEYS - 1
    assert all(homes[one.key] == part for part, several in found.items() for one in several if one.key != b"key-3")
    assert {one.origin_timestamp for one in messages.values()} == {ORIGIN}
    assert all(len(one.headers) == 1 for one in messages.values())


def test_parquet_appears_whole(spark: SparkSession, server: RunningServer, history: str, tmp_path: Path) -> None:
    folder = tmp_path / "latest"
    report = compact(spark, options_of(server, history), folder=folder)
    # Without the rule that an empty message deletes, it is the latest one.
    assert (report.key_count, report.deleted_count) == (KEYS, 0)
    frame = polars.read_parquet(folder / "*.parquet")
    payloads = dict(zip(frame["key"], frame["payload"], strict=True))
    assert payloads[b"key-3"] == b""
    assert payloads[b"key-4"] == b"4:29"
    assert len(payloads) == frame.height == KEYS
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]


def test_a_target_that_holds_something_is_refused(
    spark: SparkSession, server: RunningServer, history: str, tmp_path: Path
) -> None:
    with pytest.raises(TargetInUse, match=r"has \d+ messages; the target of a compaction must be empty or new"):
        compact(spark, options_of(server, history), topic=options_of(server, history))
    with pytest.raises(TargetInUse, match="already exists"):
        compact(spark, options_of(server, history), folder=tmp_path)


def test_a_target_must_be_named(spark: SparkSession, server: RunningServer) -> None:
    with pytest.raises(ValueError, match="either a topic or a folder"):
        compact(spark, options_of(server, "whatever"))
