"""Stored offsets that are another partition's, emptied, cut, gone or older: noticed, and never believed."""

import struct

import pytest

from courser.model.identifiers import ConsumerKind
from courser.records.checksum import xxh3
from courser.records.stored_header import PartitionIdentity
from courser.storage.offset_table import HEADER_SIZE, ConsumerKey, decode_header, encode_store
from courser.storage.recovery_cases import StopKind
from courser.storage.upkeep import plan_upkeep
from tests.storage.engine import IDENTITY, Engine

ONE = ConsumerKey(ConsumerKind.CONSUMER, b"\x01\x00\x00\x00")
TWO = ConsumerKey(ConsumerKind.CONSUMER, b"\x02\x00\x00\x00")
RECORD_SIZE = len(encode_store(ONE, 0))
every_stop = pytest.mark.parametrize("stop", list(StopKind), ids=lambda stop: stop.value)


def stored(engine: Engine) -> dict[ConsumerKey, int]:
    return dict(engine.log.offsets.items())


def used(*moves: tuple[ConsumerKey, int]) -> Engine:
    """A partition whose consumers have stored offsets, synced and known to the ledger."""
    engine = Engine()
    engine.fill(10)
    for key, offset in moves or ((ONE, 20), (TWO, 10), (ONE, 5), (TWO, 12)):
        engine.log.store_offset(key, offset)
    engine.sync()
    engine.upkeep()
    return engine


def assert_reported_once(engine: Engine, word: str) -> None:
    (finding,) = [finding for finding in engine.log.findings if finding.letter == "T" and word in finding.text]
    assert finding.is_damage
    assert finding.path == engine.offsets_path
    engine.log.store_offset(TWO, 1)
    engine.restart()
    assert engine.letters() == []
    assert stored(engine) == {TWO: 1}


@every_stop
def test_a_whole_file_is_used_and_nothing_is_reported(stop: StopKind) -> None:
    engine = used()
    for _ in range(3):
        engine.restart(stop)
        assert stored(engine) == {ONE: 5, TWO: 12}
        assert engine.letters() == []


@every_stop
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_a_file_that_is_cut_between_two_records_is_noticed(stop: StopKind, count: int) -> None:
    """With the last record of a consumer its move back may be gone: what is left would make it skip messages."""
    engine = used()
    engine.stop(stop)
    data = engine.disk.contents(engine.offsets_path)
    assert len(data) == HEADER_SIZE + 4 * RECORD_SIZE
    engine.disk.plant(engine.offsets_path, data[: HEADER_SIZE + count * RECORD_SIZE])
    engine.open(stop)
    assert stored(engine) == {}
    assert_reported_once(engine, "were synced; stored offsets are lost")


@every_stop
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_file_that_is_emptied_or_gone_is_noticed(stop: StopKind, is_gone: bool) -> None:
    engine = used()
    engine.stop(stop)
    if is_gone:
        engine.disk.unlink(engine.offsets_path)
    else:
        engine.disk.plant(engine.offsets_path, b"")
    engine.open(stop)
    assert stored(engine) == {}
    assert_reported_once(engine, "offsets that were stored are lost")


def test_a_record_more_than_the_ledger_knew_while_running_counts_at_a_clean_stop() -> None:
    engine = used()
    engine.log.store_offset(ONE, 6)
    engine.stop()
    data = engine.disk.contents(engine.offsets_path)
    engine.disk.plant(engine.offsets_path, data[:-RECORD_SIZE])
    engine.open(StopKind.CLEAN)
    assert_reported_once(engine, "were synced; stored offsets are lost")


def test_an_older_file_is_noticed() -> None:
    engine = used()
    older = engine.disk.contents(engine.offsets_path)
    while not engine.log.offsets.is_wasteful:
        engine.log.store_offset(ONE, 7)
    engine.upkeep()
    engine.sync()
    engine.stop()
    engine.disk.plant(engine.offsets_path, older + bytes(RECORD_SIZE) * 9)
    engine.open(StopKind.CLEAN)
    assert stored(engine) == {}
    assert_reported_once(engine, "an older one")


@every_stop
def test_a_file_of_another_partition_is_set_aside_whole_and_not_used(stop: StopKind) -> None:
    engine, other = used(), Engine(identity=PartitionIdentity(IDENTITY.topic_uuid, 4, 9))
    other.fill(30)
    other.log.store_offset(ONE, 80)
    other.stop()
    engine.stop(stop)
    foreign = other.disk.contents(other.offsets_path)
    engine.disk.plant(engine.offsets_path, foreign)
    engine.open(stop)
    assert stored(engine) == {}
    assert engine.quarantined() == {"offsets": foreign}
    assert_reported_once(engine, f"belongs to partition {IDENTITY.topic_uuid.hex()}:4-9")
    assert engine.quarantined() == {"offsets": foreign}


def test_rot_below_what_was_synced_is_damage_after_a_power_cut_too() -> None:
    engine = used((ONE, 20), (ONE, 5), (TWO, 12))
    engine.stop(StopKind.CRASHED)
    data = bytearray(engine.disk.contents(engine.offsets_path))
    data[HEADER_SIZE + RECORD_SIZE + 20] ^= 1
    engine.disk.plant(engine.offsets_path, bytes(data))
    engine.open(StopKind.CRASHED)
    assert [finding.is_damage for finding in engine.log.findings] == [True]
    # Nobody knows whose record it was: the first consumer must not go on at 20.
    assert stored(engine) == {TWO: 12}


@every_stop
def test_a_file_of_version_1_is_read_and_gets_an_identity(stop: StopKind) -> None:
    engine = Engine()
    engine.fill(10)
    engine.stop()
    head = struct.pack("<4sH2xQ8x", b"CRSO", 1, 0)
    old = xxh3(head).to_bytes(8, "little") + head + encode_store(ONE, 3) + encode_store(TWO, 4)
    engine.disk.plant(engine.offsets_path, old)
    engine.open(stop)
    assert stored(engine) == {ONE: 3, TWO: 4}
    assert engine.letters() == []
    header = decode_header(engine.disk.contents(engine.offsets_path))
    assert not isinstance(header, str)
    assert (header.identity, header.generation) == (IDENTITY, 1)


def test_the_ledger_takes_note_of_a_few_syncs_only() -> None:
    engine = used()
    names = []
    for offset in range(25):
        engine.log.store_offset(ONE, offset)
        engine.sync()
        while (job := plan_upkeep(engine.log)) is not None:
            names.append(job.name)
            job.run()
            job.complete()
    assert "offsets mark" not in names


def test_a_full_disk_at_a_clean_stop_leaves_the_mark_before() -> None:
    engine = used()
    engine.log.store_offset(ONE, 6)
    engine.disk.capacity = engine.disk.used
    engine.stop()
    engine.disk.capacity = None
    engine.open(StopKind.CLEAN)
    assert stored(engine) == {ONE: 6, TWO: 12}
    assert engine.letters() == []
