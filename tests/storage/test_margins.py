"""What is done to be on the safe side: nothing is made twice, replaced without a copy, or numbered too low."""

import pytest

from courser.errors import StorageFailure
from courser.model.identifiers import ConsumerKind
from courser.storage.ledger import RECORD_SIZE
from courser.storage.offset_table import ConsumerKey
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import QUARANTINE
from courser.storage.recovery_cases import StopKind
from tests.storage.engine import Engine

ONE = ConsumerKey(ConsumerKind.CONSUMER, b"\x01\x00\x00\x00")


def test_a_partition_that_is_there_is_not_made_again() -> None:
    engine = Engine()
    engine.fill(3)
    ledger = engine.disk.contents(engine.ledger_path)
    with pytest.raises(StorageFailure, match="the partition already exists"):
        PartitionLog.create(engine.disk, engine.directory, engine.identity, below=engine.directory.parent)
    assert engine.disk.contents(engine.ledger_path) == ledger


def test_a_damaged_offsets_file_is_kept_before_it_is_replaced() -> None:
    engine = Engine()
    engine.fill(3)
    engine.log.store_offset(ONE, 4)
    engine.stop()
    path = engine.directory / "offsets"
    damaged = bytearray(engine.disk.contents(path))
    damaged[3] ^= 0x40
    engine.disk.plant(path, damaged)
    log = engine.open(StopKind.CLEAN)
    assert [finding.letter for finding in log.findings if finding.is_damage] == ["T"]
    assert log.offsets.get(ONE) is None
    kept = [file for file in engine.disk.files() if file.parent == engine.directory / QUARANTINE]
    assert [engine.disk.contents(file) for file in kept] == [bytes(damaged).rstrip(b"\0")]


def test_after_a_crash_a_bad_ledger_record_counts_as_the_largest_reservation() -> None:
    """The record may have been a reservation, and all offsets in it may have been confirmed to somebody."""
    engine = Engine()
    engine.fill(1)
    first = engine.disk.contents(engine.log_path())
    while engine.log.next_offset < 5 * engine.settings.reservation_max:
        engine.fill(1)
    confirmed_end = engine.log.next_offset
    engine.disk.kill()
    ledger = bytearray(engine.disk.contents(engine.ledger_path))
    ledger[-RECORD_SIZE + 100] ^= 1
    engine.disk.plant(engine.ledger_path, ledger)
    for path in engine.disk.files():
        if path.suffix == ".log":
            engine.disk.unlink(path)
    # Nothing was synced, and the power cut took all but the first batch.
    engine.disk.plant(engine.log_path(), first)
    log = engine.open(StopKind.CRASHED)
    assert log.next_offset >= confirmed_end
