"""Tables in a real S3 store: Delta with conditional writes, Iceberg with a SQL catalog, and answers that are wrong."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from courser.archive.errors import ArchiveFailure
from courser.lake.table_place import table_place
from courser.lake.tables import PartitionField
from courser.model.quantities import SECOND
from tests.archive.seaweed import ACCESS_KEY, SECRET_KEY, SeaweedServer
from tests.lake.lying_front import lying_front
from tests.lake.topic_tables import NAME, Runner, foreign_append, offsets

BUCKET = "tables"
KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1"}
NOW = 2_000_000_000 * SECOND
ROUNDS = 8
BY_COUNTRY = (PartitionField(source="country"),)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    with SeaweedServer(tmp_path_factory.mktemp("seaweed")) as server:
        server.client.create_bucket(Bucket=BUCKET)
        yield server


def start(server: SeaweedServer, format_: str, folder: Path, *, endpoint: str = "") -> Runner:
    place = table_place(
        format_,
        path=f"s3://{BUCKET}/{folder.name}/{format_}",
        table=NAME if format_ == "iceberg" else "",
        catalog=f"sqlite:///{folder / 'catalog.db'}" if format_ == "iceberg" else "",
        endpoint=endpoint or server.endpoint,
    )
    return Runner.at(place, environment=KEYS, partition_by=BY_COUNTRY)


@pytest.mark.parametrize("format_", ["iceberg", "delta"])
def test_a_table_in_a_bucket_is_written_merged_and_kept_clean(
    server: SeaweedServer, tmp_path: Path, format_: str
) -> None:
    runner = start(server, format_, tmp_path)
    for number in range(5):
        assert runner.append(number * 12, 12)
    foreign_append(runner, 1000, 2)
    assert start(server, format_, tmp_path).next_offset() == 60
    assert runner.merge(now=NOW)
    if format_ == "iceberg":
        runner.table.expire(older_than=NOW)
    runner.written(0, 12)
    runner.table.remove_orphans(now=NOW)
    assert offsets(runner) == [*range(60), 1000, 1001]


def test_a_delta_table_has_every_row_once_though_the_store_lies(
    server: SeaweedServer, tmp_path: Path, seed: int
) -> None:
    direct = start(server, "delta", tmp_path)
    with lying_front(server.endpoint, r"_delta_log/\d+\.json", seed) as front:
        runner = start(server, "delta", tmp_path, endpoint=front.address)
        for number in range(ROUNDS):
            assert runner.append(number * 3, 3)
    assert front.told
    assert direct.next_offset() == 3 * ROUNDS
    assert offsets(direct) == list(range(3 * ROUNDS)), front.told


def test_a_task_repeats_what_the_store_did_not_take(server: SeaweedServer, tmp_path: Path, seed: int) -> None:
    direct = start(server, "delta", tmp_path)
    with lying_front(server.endpoint, r"\.parquet", seed) as front:
        runner = start(server, "delta", tmp_path, endpoint=front.address)
        failed = 0
        while (first := direct.next_offset() or 0) < 3 * ROUNDS:
            try:
                runner.append(first, 3)
            except ArchiveFailure:
                # The next attempt of the task has another name.
                failed += 1
    assert front.told
    assert offsets(direct) == list(range(3 * ROUNDS)), front.told
    assert failed < len(front.told), "a file that is there though the answer was lost is not written again"
