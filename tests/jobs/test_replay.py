"""Replay on Spark: the same messages in the same partitions, once, whatever stops a run."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import courser
from courser.jobs import replay as replay_module
from courser.jobs.job_book import BookRefused, JobBook
from courser.jobs.replay import ReplayReport, replay
from courser.spark.errors import WriteFailed
from tests.jobs.topics import all_messages, connected, facts_of, file_options, fill_topic, make_topic, options_of
from tests.servers import RunningServer

COUNT = 1500
SMALL = {"maxBytesPerPartition": "48 KiB"}
"""Ranges that begin and end inside batches."""


class Interrupted(Exception):
    """The driver dies."""


@pytest.fixture
def source(server: RunningServer, request: pytest.FixtureRequest) -> str:
    topic: str = request.node.name[:200]
    with connected(server) as client:
        make_topic(client, topic)
        fill_topic(client, topic, COUNT)
        # And some that came one by one.
        for number in range(COUNT, COUNT + 20):
            fill_topic(client, topic, 1, first=number)
    return topic


def assert_same(server: RunningServer, source: str, target: str) -> None:
    with connected(server) as client:
        for partition in range(2):
            wanted = list(map(facts_of, all_messages(client, source, partition)))
            found = list(map(facts_of, all_messages(client, target, partition)))
            assert len(found) == len(wanted)
            assert found == wanted


def run(spark: SparkSession, server: RunningServer, source: str, books: Path, **options: int) -> ReplayReport:
    read = options_of(server, source, **SMALL)
    write = options_of(server, f"{source} again", createTopic="2")
    return replay(spark, read, write, job=source, books=books, **options)


def test_ids_times_headers_order_and_partitions_are_kept(
    spark: SparkSession, server: RunningServer, source: str, tmp_path: Path
) -> None:
    report = run(spark, server, source, tmp_path)
    assert (report.message_count, report.step_count, report.resumed_count) == (2 * (COUNT + 20), 1, 0)
    assert report.ends == {0: COUNT + 20, 1: COUNT + 20}
    assert_same(server, source, f"{source} again")


def test_the_next_run_of_a_job_brings_what_is_new(
    spark: SparkSession, server: RunningServer, source: str, tmp_path: Path
) -> None:
    run(spark, server, source, tmp_path)
    assert run(spark, server, source, tmp_path).step_count == 0
    with connected(server) as client:
        fill_topic(client, source, 30, first=5000)
    assert run(spark, server, source, tmp_path).message_count == 60
    assert_same(server, source, f"{source} again")


def test_a_run_that_dies_between_steps_is_taken_up_where_it_was(
    spark: SparkSession, server: RunningServer, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = replay_module._publish_step

    def die_at_step_two(*arguments: object) -> tuple[int, int]:
        if arguments[4] == 2:
            raise Interrupted
        return publish(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(replay_module, "_publish_step", die_at_step_two)
        with pytest.raises(Interrupted):
            run(spark, server, source, tmp_path, step_size=100_000)
    report = run(spark, server, source, tmp_path, step_size=100_000)
    assert report.step_count == report.resumed_count > 0
    assert report.message_count < 2 * (COUNT + 20)
    assert_same(server, source, f"{source} again")


def test_a_run_that_dies_behind_a_publish_repeats_nothing(
    spark: SparkSession, server: RunningServer, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = JobBook.save

    def die_once_something_is_published(book: JobBook) -> None:
        if book.done_count:
            raise Interrupted
        save(book)

    with monkeypatch.context() as patch:
        patch.setattr(JobBook, "save", die_once_something_is_published)
        with pytest.raises(Interrupted):
            run(spark, server, source, tmp_path)
    assert run(spark, server, source, tmp_path).step_count == 0
    assert_same(server, source, f"{source} again")


def test_segment_files_are_replayed_without_their_server(
    spark: SparkSession, server: RunningServer, tmp_path: Path
) -> None:
    with RunningServer(tmp_path / "old") as old, connected(old) as client:
        make_topic(client, "orders")
        fill_topic(client, "orders", COUNT)
        wanted = [list(map(facts_of, all_messages(client, "orders", partition))) for partition in range(2)]
    target = options_of(server, "restored", createTopic="2")
    replay(spark, file_options(old.data, "orders"), target, job="restore", books=tmp_path)
    with connected(server) as client:
        assert [list(map(facts_of, all_messages(client, "restored", part))) for part in range(2)] == wanted


def test_a_target_with_too_few_partitions_is_refused(
    spark: SparkSession, server: RunningServer, source: str, tmp_path: Path
) -> None:
    with connected(server) as client:
        make_topic(client, "narrow", partitions=1)
    with pytest.raises(WriteFailed, match=r"has 1 partitions, but shop/.* has 2; add some"):
        replay(spark, options_of(server, source), options_of(server, "narrow"), job="narrow", books=tmp_path)


def test_a_name_that_stands_for_another_job_is_refused(
    spark: SparkSession, server: RunningServer, source: str, tmp_path: Path
) -> None:
    run(spark, server, source, tmp_path)
    other = options_of(server, f"{source} elsewhere", createTopic="2")
    with pytest.raises(BookRefused, match="a job of this name already exists for target"):
        replay(spark, options_of(server, source), other, job=source, books=tmp_path)
    # Without its book nobody knows what the server has published already.
    with pytest.raises(BookRefused, match="the server has published 1 steps, but only 0 are in the book"):
        run(spark, server, source, tmp_path / "lost")


def test_messages_are_only_seen_when_a_step_is_whole(
    spark: SparkSession, server: RunningServer, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object, **__: object) -> None:
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(courser.SyncClient, "publish_staged", die)
        with pytest.raises(Interrupted):
            run(spark, server, source, tmp_path)
    with connected(server) as client:
        assert all_messages(client, f"{source} again", 0) == []
    run(spark, server, source, tmp_path)
    assert_same(server, source, f"{source} again")
