"""Recovery of a directory that has files of another partition: they are left alone."""

from pathlib import Path

import pytest

from courser.errors import PartitionReadOnly
from courser.records.stored_header import PartitionIdentity
from courser.storage.identity_search import ForeignPartition
from courser.storage.ledger import RECORD_SIZE
from courser.storage.read_result import SkippedRange, SkipReason
from courser.storage.recovery_cases import StopKind
from tests.storage.engine import IDENTITY, Engine
from tests.storage.recovered import (
    ONE_SEGMENT,
    change,
    data_of,
    every_stop,
    filled,
    offsets,
    skipped,
    the_finding,
    three_segments,
)


def another() -> Engine:
    """Another partition with segments of the same names, and other messages in them."""
    engine = Engine(ONE_SEGMENT, identity=PartitionIdentity(bytes(16), 9, 9))
    engine.fill(2, size=50)
    engine.roll()
    engine.fill(2, size=50)
    engine.roll()
    engine.fill(2, size=50)
    engine.stop()
    return engine


def contents(engine: Engine) -> dict[Path, bytes]:
    return {path: engine.disk.contents(path) for path in engine.disk.files() if engine.directory in path.parents}


def replace_files(engine: Engine, files: dict[Path, bytes]) -> None:
    """As if somebody had moved the directory away and put another one in its place."""
    for path in contents(engine):
        engine.disk.unlink(path)
    engine.disk.sync_directory(engine.directory)
    for path, data in files.items():
        engine.disk.plant(path, data)


@every_stop
def test_case_x_a_segment_of_another_partition_is_left_alone_and_the_rest_is_served(stop: StopKind) -> None:
    engine, other = three_segments(), another()
    own, own_index = data_of(engine, 6), engine.disk.contents(engine.index_path(6))
    foreign, foreign_index = data_of(other, 6), other.disk.contents(other.index_path(6))
    change(engine, 6, foreign)
    engine.disk.plant(engine.index_path(6), foreign_index)
    engine.open(stop)
    finding = the_finding(engine)
    assert (finding.letter, finding.is_damage, finding.first_offset, finding.end_offset) == ("X", True, 6, 12)
    assert all(str(identity) in finding.text for identity in (IDENTITY, other.identity))
    assert offsets(engine) == [*range(6), *range(12, 18)]
    assert skipped(engine)[:1] == [SkippedRange(6, 12, SkipReason.LOST)]
    assert data_of(engine, 6) == foreign
    assert engine.disk.contents(engine.index_path(6)) == foreign_index
    assert engine.quarantined() == {}
    first = engine.append_numbered(2).base_offset
    assert first >= 18
    engine.stop()
    # The right one comes back.
    change(engine, 6, own)
    engine.disk.plant(engine.index_path(6), own_index)
    engine.open(StopKind.CLEAN)
    assert engine.letters() == []
    assert offsets(engine) == [*range(18), first, first + 1]


@every_stop
def test_a_foreign_segment_in_the_place_of_the_newest_one_ends_the_writing(stop: StopKind) -> None:
    """Nobody knows how far the offsets went that were confirmed in the one that is missing."""
    engine, other = three_segments(), another()
    own, foreign = data_of(engine, 12), data_of(other, 12)
    change(engine, 12, foreign)
    engine.open(stop)
    finding = the_finding(engine)
    assert (finding.letter, finding.is_damage) == ("X", True)
    assert engine.log.is_incomplete
    assert offsets(engine) == list(range(12))
    with pytest.raises(PartitionReadOnly, match="move that file to its own directory"):
        engine.append_numbered(1)
    engine.stop(StopKind.KILLED)
    assert data_of(engine, 12) == foreign
    change(engine, 12, own)
    engine.open(StopKind.CRASHED)
    assert offsets(engine) == list(range(18))
    assert engine.append_numbered(1).base_offset >= 18


@every_stop
def test_a_foreign_segment_in_the_place_of_an_unsealed_one_takes_no_other_with_it(stop: StopKind) -> None:
    """After a power cut a segment behind a hole does not count. A segment that was replaced is no such hole."""
    engine, other = filled(2), another()
    engine.log.roll()
    engine.fill(2)
    engine.log.roll()
    engine.fill(2)
    engine.sync()
    engine.stop(StopKind.KILLED)
    own, foreign = data_of(engine, 6), data_of(other, 6)
    change(engine, 6, foreign)
    engine.open(stop)
    assert set(engine.letters()) == {"X", "V"}
    assert engine.log.failure is None
    assert offsets(engine) == [*range(6), *range(12, 18)]
    assert data_of(engine, 6) == foreign
    assert engine.quarantined() == {}
    engine.stop(StopKind.KILLED)
    change(engine, 6, own)
    engine.open(stop)
    assert offsets(engine) == list(range(18))


@every_stop
def test_a_foreign_segment_below_the_start_offset_is_not_deleted(stop: StopKind) -> None:
    engine, other = three_segments(), another()
    engine.open(StopKind.CLEAN)
    engine.trim(6)
    engine.stop()
    change(engine, 0, data_of(other))
    engine.open(stop)
    assert engine.letters() == ["X"]
    assert data_of(engine) == data_of(other)
    assert offsets(engine) == list(range(6, 18))


def test_retention_does_not_delete_a_foreign_segment_that_has_the_size_of_its_own() -> None:
    """A start does not read sealed segments, so it does not see the difference."""
    engine, other = three_segments(), another()
    size = len(data_of(engine))
    foreign = data_of(other)[:size].ljust(size, b"!")
    change(engine, 0, foreign)
    engine.open(StopKind.CLEAN)
    assert engine.letters() == []
    assert offsets(engine) == list(range(6, 18))
    engine.trim(6)
    assert data_of(engine) == foreign
    engine.restart()
    assert engine.letters() == ["X"]
    assert data_of(engine) == foreign


@every_stop
@pytest.mark.parametrize("is_ledger_there", [True, False], ids=["with ledger", "without ledger"])
def test_case_y_a_directory_of_another_partition_is_left_exactly_as_it_is(
    stop: StopKind, is_ledger_there: bool
) -> None:
    engine, other = three_segments(), another()
    own, foreign = contents(engine), contents(other)
    if not is_ledger_there:
        del foreign[other.ledger_path]
    foreign[engine.directory / "ledger.tmp"] = b"left"
    foreign[engine.index_path(99)] = b"left"
    replace_files(engine, foreign)
    with pytest.raises(ForeignPartition) as refusal:
        engine.open(stop)
    assert (refusal.value.expected, refusal.value.found) == (IDENTITY, other.identity)
    assert contents(engine) == foreign
    # Swapped back, all is there.
    replace_files(engine, own)
    engine.open(StopKind.CRASHED)
    assert offsets(engine) == list(range(18))
    assert engine.append_numbered(1).base_offset >= 18


@every_stop
def test_a_foreign_ledger_beside_our_own_segments_changes_nothing(stop: StopKind) -> None:
    engine, other = three_segments(), another()
    engine.disk.plant(engine.ledger_path, other.disk.contents(other.ledger_path))
    before = contents(engine)
    with pytest.raises(ForeignPartition, match="it contains the ledger of partition"):
        engine.open(stop)
    assert contents(engine) == before


@every_stop
def test_a_foreign_record_among_our_own_is_a_misdirected_write(stop: StopKind) -> None:
    engine, other = three_segments(), another()
    ledger, foreign = engine.disk.contents(engine.ledger_path), other.disk.contents(other.ledger_path)
    engine.disk.plant(engine.ledger_path, foreign[:RECORD_SIZE] + ledger[RECORD_SIZE:])
    engine.open(stop)
    assert set(engine.letters()) == {"P"}
    assert offsets(engine) == list(range(18))


@every_stop
def test_a_first_batch_of_another_partition_in_front_of_our_own_is_a_misdirected_write(stop: StopKind) -> None:
    engine, other = filled(2), another()
    engine.stop(StopKind.KILLED)
    data, foreign = data_of(engine), data_of(other)[: other.batch_starts()[1]]
    change(engine, 0, foreign + data[engine.batch_starts()[1] :])
    engine.open(stop)
    assert set(engine.letters()) == {{StopKind.CLEAN: "H", StopKind.KILLED: "D", StopKind.CRASHED: "F"}[stop]}
