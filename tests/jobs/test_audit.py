"""Audit on Spark: every planted damage is found under its name, and nothing else, also beside a server that writes."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import courser
from courser.inspect.findings import Finding, Severity
from courser.inspect.verify import Verification
from courser.jobs.audit import AuditReport, NothingToAudit, audit
from courser.storage.local_files import LocalFileSystem
from tests.inspect.partitions import PER_BATCH, Partition, batch_at, cut, flip, full_partition, stored
from tests.servers import RunningServer
from tests.spark_fixtures import PATIENCE

SEGMENT_SIZE = 1024 * 1024


def facts(finding: Finding) -> tuple[object, ...]:
    return finding.severity, finding.check, finding.path.name, finding.first_offset


def flip_a_body(partition: Partition) -> None:
    flip(partition.logs[1], 300)


def flip_a_header(partition: Partition) -> None:
    flip(partition.logs[2], 60)


def flip_an_early_and_a_late_segment(partition: Partition) -> None:
    flip(partition.logs[0], 700)
    flip(partition.logs[-1], 10)


def cut_a_sealed_segment(partition: Partition) -> None:
    cut(partition.logs[1], 500)


def cut_the_open_segment(partition: Partition) -> None:
    cut(partition.logs[-1], 10)


def lose_a_segment(partition: Partition) -> None:
    partition.logs[1].unlink()


def lose_a_segment_and_the_ledger(partition: Partition) -> None:
    partition.logs[2].unlink()
    partition.ledger.unlink()


def flip_an_index(partition: Partition) -> None:
    flip(partition.indexes[0], 90)


def swap_two_indexes(partition: Partition) -> None:
    partition.indexes[0].write_bytes(partition.indexes[1].read_bytes())


def flip_the_ledger(partition: Partition) -> None:
    flip(partition.ledger, 300)


def store_another_time_in_a_first_batch(partition: Partition) -> None:
    """Going back between segments is allowed, but the ledger and the index know the time that was stored."""
    log = partition.logs[1]
    base = int(log.stem)
    old = stored(batch_at(base), offset=base, time=1)
    log.write_bytes(old + log.read_bytes()[len(old) :])


def let_time_go_back_within_a_segment(partition: Partition) -> None:
    """The second batch is older than the first one."""
    log = partition.logs[0]
    size = len(stored(batch_at(0), offset=0, time=1))
    old = stored(batch_at(PER_BATCH), offset=PER_BATCH, time=1)
    content = log.read_bytes()
    log.write_bytes(content[:size] + old + content[size + len(old) :])


HURTS = {
    flip_a_body: {"log"},
    flip_a_header: {"log"},
    flip_an_early_and_a_late_segment: {"log"},
    cut_a_sealed_segment: {"log"},
    cut_the_open_segment: {"log"},
    lose_a_segment: {"files"},
    lose_a_segment_and_the_ledger: {"ledger", "continuity"},
    flip_an_index: {"index"},
    swap_two_indexes: {"index"},
    flip_the_ledger: {"ledger"},
    store_another_time_in_a_first_batch: {"ledger", "index"},
    let_time_go_back_within_a_segment: {"times", "index"},
}


def damages(findings: tuple[Finding, ...] | list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is Severity.DAMAGE]


@pytest.fixture(scope="module")
def hurt_directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A data directory for each way to hurt a partition, by its name. All of them are below one directory."""
    place = tmp_path_factory.mktemp("hurt")
    directories = {}
    for hurt in HURTS:
        partition = full_partition(place / hurt.__name__)
        hurt(partition)
        directories[hurt.__name__] = partition.data_directory
    return directories


@pytest.fixture(scope="module")
def audited(spark: SparkSession, hurt_directories: dict[str, Path]) -> AuditReport:
    """One audit of them all: a job on Spark takes longer than all that it checks here."""
    return audit(spark, next(iter(hurt_directories.values())).parent)


@pytest.mark.parametrize(("hurt", "checks"), HURTS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_planted_damage_is_found_as_verify_finds_it(
    audited: AuditReport,
    hurt_directories: dict[str, Path],
    hurt: Callable[[Partition], None],
    checks: set[str],
) -> None:
    directory = hurt_directories[hurt.__name__]
    findings = [finding for finding in audited.findings if directory in finding.path.parents]
    assert {finding.check for finding in damages(findings)} == checks
    one_after_the_other = Verification(LocalFileSystem(), directory)
    assert set(map(facts, findings)) == set(map(facts, one_after_the_other.findings()))


def test_a_damaged_directory_is_summed_up_as_verify_does_it(
    spark: SparkSession, audited: AuditReport, hurt_directories: dict[str, Path]
) -> None:
    directory = hurt_directories["flip_a_body"]
    for report, place in ((audited, directory.parent), (audit(spark, directory), directory)):
        one_after_the_other = Verification(LocalFileSystem(), place)
        assert set(map(facts, report.findings)) == set(map(facts, one_after_the_other.findings()))
        assert report.summary.damage_count
        assert report.summary == one_after_the_other.summary


def test_a_healthy_directory_has_no_findings(spark: SparkSession, tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    report = audit(spark, partition.data_directory)
    assert report.findings == ()
    assert not report.summary.damage_count
    assert (report.summary.segment_count, report.summary.message_count) == (len(partition.logs), 30 * PER_BATCH)
    assert report.summary.size >= sum(path.stat().st_size for path in partition.logs)


def test_times_that_go_back_where_the_clock_was_set_back_are_noted(spark: SparkSession, tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data", is_closed=False)
    partition.clock.jump(-10_000_000_000)
    partition.append()
    partition.work()
    partition.close()
    report = audit(spark, partition.data_directory)
    assert {(finding.severity, finding.check) for finding in report.findings} == {(Severity.NOTE, "times")}
    one_after_the_other = Verification(LocalFileSystem(), partition.data_directory)
    assert set(map(facts, report.findings)) == set(map(facts, one_after_the_other.findings()))
    assert not report.summary.damage_count


def test_a_torn_end_is_a_note_before_a_stop_and_damage_after_a_clean_one(spark: SparkSession, tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data", is_closed=False)
    with partition.logs[-1].open("r+b") as file:
        file.seek(partition.log.segments[-1].size)
        file.write(b"half a batch")
    assert [finding.severity for finding in audit(spark, partition.data_directory).findings] == [Severity.NOTE]
    stopped = full_partition(tmp_path / "stopped")
    with stopped.logs[-1].open("ab") as file:
        file.write(b"half a batch")
    assert len(damages(audit(spark, stopped.data_directory).findings)) == 1


def test_a_directory_without_partitions_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NothingToAudit, match="no partitions found below"):
        audit(spark, tmp_path)


@contextmanager
def sender(server: RunningServer, topic: str) -> Iterator[tuple[threading.Semaphore, threading.Semaphore]]:
    """Somebody who sends a batch for every permit until the block ends, and counts what was acknowledged."""
    permits, sent, is_over = threading.Semaphore(0), threading.Semaphore(0), threading.Event()

    def send() -> None:
        with courser.connect_sync(server.address, username="iggy", password="iggy") as client:
            client.create_topic("shop", topic, 2)
            while permits.acquire(timeout=PATIENCE) and not is_over.is_set():
                client.send_messages("shop", topic, None, [b"x" * 1000] * 200)
                sent.release()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield permits, sent
    finally:
        is_over.set()
        permits.release()
        thread.join(PATIENCE)
    assert not thread.is_alive()


def test_nothing_is_found_beside_a_server_that_writes(spark: SparkSession, tmp_path: Path) -> None:
    settings = {"system.segment.size": SEGMENT_SIZE}
    with RunningServer(tmp_path / "server", settings=settings) as server:
        with courser.connect_sync(server.address, username="iggy", password="iggy") as client:
            client.create_stream("shop")
        reports: list[AuditReport] = []
        with sender(server, "orders") as (permits, sent):
            for _ in range(5):
                permits.release(20)
                # The rest, several segments' worth, arrives while the audit runs.
                assert all(sent.acquire(timeout=PATIENCE) for _ in range(8))
                reports.append(audit(spark, server.data))
        assert [
            finding for report in reports for finding in report.findings if finding.severity is not Severity.NOTE
        ] == []
        assert reports[-1].summary.segment_count > reports[0].summary.segment_count
        assert server.stop() == 0
        assert audit(spark, server.data).findings == ()
        # And what is planted now is found.
        log = min(server.data.glob("streams/*/topics/*/partitions/*/*.log"))
        flip(log, 400)
        [damage] = damages(audit(spark, server.data).findings)
        assert damage.path == log


def test_nothing_is_found_beside_a_server_that_purges_and_deletes(spark: SparkSession, tmp_path: Path) -> None:
    is_over, rounds = threading.Event(), threading.Semaphore(0)

    def churn() -> None:
        with courser.connect_sync(server.address, username="iggy", password="iggy") as client:
            client.create_stream("shop")
            while not is_over.is_set():
                client.create_topic("shop", "orders", 2)
                for _ in range(2):
                    for _ in range(8):
                        client.send_messages("shop", "orders", 0, [b"x" * 1000] * 200)
                    client.purge_topic("shop", "orders")
                    client.send_messages("shop", "orders", 0, [b"x" * 1000] * 200)
                client.delete_topic("shop", "orders")
                rounds.release()

    with RunningServer(tmp_path / "server", settings={"system.segment.size": SEGMENT_SIZE}) as server:
        thread = threading.Thread(target=churn)
        thread.start()
        try:
            reports = []
            for _ in range(4):
                assert rounds.acquire(timeout=PATIENCE)
                reports.append(audit(spark, server.data))
        finally:
            is_over.set()
            thread.join(PATIENCE)
        assert [finding for report in reports for finding in damages(report.findings)] == []
        assert not any(report.summary.unreadable_count for report in reports)
        assert server.stop() == 0
    assert damages(audit(spark, server.data).findings) == []
