"""Starts on a directory that somebody or something has changed: refused clearly, or handled as documented."""

import contextlib
import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from courser.errors import PartitionReadOnly, StartRefused, StorageFailure
from courser.model.durability import Durability
from courser.model.identifiers import ConsumerKind
from courser.storage.ledger import RECORD_SIZE
from courser.storage.local_files import LocalFileSystem
from courser.storage.log_reader import LogReader
from courser.storage.offset_table import ConsumerKey
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import QUARANTINE
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import LogSettings
from courser.storage.upkeep import plan_trim
from tests.fakes.clocks import ManualClock
from tests.fakes.faults import FaultPlan
from tests.storage.engine import ALL, IDENTITY, Engine, durability, flipped, messages_of, payload_of

ONE_SEGMENT = LogSettings(segment_size=1024 * 1024, reservation_min=100)
every_stop = pytest.mark.parametrize("stop", list(StopKind), ids=lambda stop: stop.value)
KEYS = [ConsumerKey(ConsumerKind.CONSUMER, b"\x01\x00\x00\x00"), ConsumerKey(ConsumerKind.GROUP, b"g" * 40)]


def offsets(engine: Engine) -> list[int]:
    return [message.offset for message in engine.read_all()[0]]


def with_disk_of(engine: Engine) -> Engine:
    """The same partition on a copy of the disk."""
    other = Engine.__new__(Engine)
    other.__dict__.update(engine.__dict__)
    other.disk = engine.disk.clone(random.Random(1))
    return other


def segments(count: int, *, sealed: bool = True, last_stop: StopKind = StopKind.CLEAN) -> Engine:
    """``count`` segments of six messages, the last of them open."""
    engine = Engine(ONE_SEGMENT)
    for number in range(count):
        if number:
            engine.log.roll()
            if sealed:
                engine.upkeep()
        engine.fill(2)
        engine.sync()
    engine.stop(last_stop)
    return engine


# --- names and kinds of files ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ledger", "offsets", f"{0:020d}.log", f"{0:020d}.index", f"{77:020d}.log"])
def test_a_directory_in_the_place_of_a_file_refuses_the_start_and_names_it(name: str) -> None:
    engine = Engine(ONE_SEGMENT)
    for path in engine.disk.files():
        if path.name == name:
            engine.disk.unlink(path)
    engine.disk.sync_directory(engine.directory)
    engine.disk.plant_directory(engine.directory / name)
    with pytest.raises(StartRefused, match=name) as refusal:
        engine.open(StopKind.CLEAN)
    assert refusal.value.remedy


@pytest.mark.parametrize("name", ["ledger", f"{0:020d}.log"])
def test_a_symbolic_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path, name: str) -> None:
    system = LocalFileSystem()
    directory = tmp_path / "partition"
    PartitionLog.create(system, directory, IDENTITY, below=tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"not yours")
    (directory / name).unlink(missing_ok=True)
    (directory / name).symlink_to(elsewhere)
    with pytest.raises(StartRefused, match=name):
        PartitionLog.open(system, directory, IDENTITY, settings=ONE_SEGMENT, clock=ManualClock(), stop=StopKind.CLEAN)
    assert elsewhere.read_bytes() == b"not yours"


@pytest.mark.parametrize("operation", ["open", "list_directory", "sync", "read_at", "truncate", "unlink", "rename"])
@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS, errno.EIO])
def test_a_disk_that_refuses_is_an_error_of_ours_or_a_partition_without_writes(operation: str, error: int) -> None:
    """A read-only file, a read-only mount, a dying disk: no bare OSError leaves recovery."""
    engine = segments(3, last_stop=StopKind.KILLED)
    data = engine.disk.contents(engine.log_path(12))
    engine.disk.plant(engine.log_path(12), data[: engine.batch_starts(12)[-1] - 1])
    engine.disk.plant(engine.directory / "ledger.tmp", b"left")
    for call in range(1, 12):
        other = with_disk_of(engine)
        other.disk.plan = FaultPlan().fail(operation, error, call=call)
        with contextlib.suppress(StorageFailure, StartRefused):
            other.open(StopKind.KILLED)
            other.disk.plan = FaultPlan()
            assert offsets(other) == list(range(15))
            if other.log.failure is not None:
                with pytest.raises(PartitionReadOnly):
                    other.append_numbered(1)
        # Whatever went wrong, the next start on a healthy disk is complete.
        other.disk.plan = FaultPlan()
        other.disk.kill()
        other.open(StopKind.KILLED)
        assert offsets(other) == list(range(15))
        assert other.log.failure is None


def test_a_file_name_with_a_wrong_first_offset_is_not_believed() -> None:
    """The batches inside know better: none of them begins where the name says."""
    engine = segments(1, last_stop=StopKind.KILLED)
    data = engine.disk.contents(engine.log_path())
    engine.disk.unlink(engine.log_path())
    engine.disk.plant(engine.log_path(3), data)
    engine.open(StopKind.KILLED)
    assert engine.log.findings
    found = {message.offset: message.payload for message in engine.read_all()[0]}
    assert all(found[offset] == payload_of(offset) for offset in found)


@every_stop
def test_two_unsealed_segments_that_overlap_keep_the_first_and_set_the_other_aside(stop: StopKind) -> None:
    engine = segments(1, last_stop=StopKind.KILLED)
    copy = engine.disk.contents(engine.log_path())[engine.batch_starts()[1] :]
    engine.disk.plant(engine.log_path(3), copy)
    engine.open(stop)
    assert "O" in engine.letters()
    assert offsets(engine) == list(range(6))
    assert copy in engine.quarantined().values()


@every_stop
def test_running_recovery_twice_gives_the_same_as_once(stop: StopKind) -> None:
    engine = segments(3, sealed=False, last_stop=StopKind.KILLED)
    engine.disk.plant(engine.log_path(6), flipped(engine.disk.contents(engine.log_path(6)), 300))
    engine.open(stop)
    first = offsets(engine)
    files = {path: engine.disk.contents(path) for path in engine.disk.files() if path.suffix == ".log"}
    for _ in range(3):
        engine.disk.kill()
        engine.open(StopKind.KILLED)
        assert offsets(engine) == first
        assert {path: engine.disk.contents(path) for path in files} == files


# --- nothing is lost before it was copied ---------------------------------------------------------------


@every_stop
def test_what_cannot_be_copied_aside_is_not_cut(stop: StopKind) -> None:
    """A full disk at the worst moment: the partition takes no writes, and the bytes are all still there."""
    for batches in (1, 3):
        engine = Engine(ONE_SEGMENT)
        engine.fill(batches)
        engine.stop(StopKind.KILLED)
        data = flipped(engine.disk.contents(engine.log_path())[: engine.batch_starts()[-1]], 300)
        if stop is not StopKind.CRASHED:
            data = data[: engine.batch_starts()[1]]
        engine.disk.plant(engine.log_path(), data)
        engine.disk.plan = FaultPlan().fail("write_at", errno.ENOSPC, name="*.log.*", onwards=True)
        engine.open(stop)
        assert engine.log.lack_of_room is not None
        assert engine.disk.contents(engine.log_path()) == data
        engine.disk.plan = FaultPlan()
        engine.disk.kill()
        log = engine.open(stop)
        assert (log.failure, log.lack_of_room) == (None, None)
        assert data in engine.quarantined().values()


def test_copies_of_several_starts_do_not_replace_each_other() -> None:
    engine = Engine(ONE_SEGMENT)
    engine.fill(1)
    for text in (b"first", b"second", b"third"):
        engine.stop(StopKind.KILLED)
        size = engine.batch_starts()[1]
        engine.disk.plant(engine.log_path(), engine.disk.contents(engine.log_path())[:size] + text.ljust(8, b"!"))
        engine.open(StopKind.KILLED)
    assert sorted(engine.quarantined().values()) == [b"first!!!", b"second!!", b"third!!!"]
    assert {path.parent.name for path in engine.disk.files() if "log." in path.name} == {QUARANTINE}


# --- what was synced is not given up --------------------------------------------------------------------


def test_after_a_power_cut_rot_in_front_of_the_recovery_point_costs_only_itself() -> None:
    """Everything before the recovery point was synced: a hole there is no reason to doubt what follows it."""
    engine = segments(2, sealed=False)
    engine.open(StopKind.CLEAN)
    engine.stop(StopKind.KILLED)
    data = engine.disk.contents(engine.log_path(0))
    engine.disk.plant(engine.log_path(0), data[: engine.batch_starts(0)[1] + 100])
    # The seal of the first segment is unknown: only the recovery point in the second one vouches for it.
    ledger = engine.disk.contents(engine.ledger_path)
    kept = [
        ledger[position : position + RECORD_SIZE]
        for position in range(0, len(ledger), RECORD_SIZE)
        if ledger[position + 14] != 2
    ]
    engine.disk.plant(engine.ledger_path, b"".join(kept))
    engine.open(StopKind.CRASHED)
    assert offsets(engine) == [0, 1, 2, *range(6, 12)]


@every_stop
@pytest.mark.parametrize("damaged", [0, 6, 12])
def test_a_seal_that_rotted_in_the_ledger_does_not_take_its_segment_away(stop: StopKind, damaged: int) -> None:
    engine = segments(4)
    ledger = engine.disk.contents(engine.ledger_path)
    for position in range(0, len(ledger), RECORD_SIZE):
        is_seal = ledger[position + 14] == 2
        if is_seal and int.from_bytes(ledger[position + 88 : position + 96], "little") == damaged:
            ledger = flipped(ledger, position + 100)
    engine.disk.plant(engine.ledger_path, ledger)
    engine.open(stop)
    assert offsets(engine) == list(range(24))
    assert "P" in engine.letters()
    assert engine.quarantined() == {}
    engine.upkeep()
    engine.restart()
    assert engine.letters() == []
    assert offsets(engine) == list(range(24))


def test_a_segment_that_lost_its_seal_is_not_overtaken_by_retention() -> None:
    """Sealed segments behind it go only after it: messages are removed from the front."""
    engine = segments(4)
    ledger = engine.disk.contents(engine.ledger_path)
    seals = [position for position in range(0, len(ledger), RECORD_SIZE) if ledger[position + 14] == 2]
    engine.disk.plant(engine.ledger_path, flipped(ledger, seals[0] + 100))
    engine.open(StopKind.CLEAN)
    assert plan_trim(engine.log, 18) is None
    assert offsets(engine) == list(range(24))
    engine.upkeep()
    engine.trim(18)
    assert offsets(engine) == list(range(18, 24))
    assert [path.name for path in engine.log_paths()] == [f"{18:020d}.log"]


def test_a_damage_that_every_start_meets_is_written_down_once() -> None:
    engine = Engine(ONE_SEGMENT)
    old_ledger = engine.disk.contents(engine.ledger_path)
    engine.fill(5)
    engine.stop()
    engine.disk.plant(engine.ledger_path, old_ledger)
    engine.disk.plant(engine.log_path(), flipped(engine.disk.contents(engine.log_path()), engine.batch_starts()[1]))
    for _ in range(4):
        engine.open(StopKind.CLEAN)
        assert len(engine.log.ledger.state.damages) == 1
        engine.disk.kill()


# --- the ledger, byte by byte ---------------------------------------------------------------------------


@every_stop
def test_every_flipped_byte_of_the_ledger_is_reported_and_costs_no_message(stop: StopKind) -> None:
    engine = segments(3)
    ledger = engine.disk.contents(engine.ledger_path)
    for position in range(0, len(ledger), 5):
        other = with_disk_of(engine)
        other.disk.plant(other.ledger_path, flipped(ledger, position))
        other.open(stop)
        assert [finding.letter for finding in other.log.findings] == ["P"], position
        assert other.log.findings[0].position == position - position % RECORD_SIZE
        assert offsets(other) == list(range(18)), position
        assert other.log.next_offset >= 18
        other.restart(StopKind.KILLED)
        assert other.letters() == []


@every_stop
def test_a_ledger_cut_at_any_record_or_byte_costs_no_message(stop: StopKind) -> None:
    engine = segments(3)
    ledger = engine.disk.contents(engine.ledger_path)
    for size in sorted({*range(0, len(ledger), RECORD_SIZE), *range(1, len(ledger), 83)}):
        other = with_disk_of(engine)
        other.disk.plant(other.ledger_path, ledger[:size])
        other.open(stop)
        assert offsets(other) == list(range(18)), size
        assert other.log.next_offset >= 18
        if size % RECORD_SIZE:
            assert "P" in other.letters()


# --- the stored offsets, byte by byte -------------------------------------------------------------------


def with_consumers() -> Engine:
    engine = Engine(ONE_SEGMENT)
    engine.fill(10)
    for offset in (2, 5, 9, 20):
        for key in KEYS:
            engine.log.store_offset(key, offset)
    engine.stop()
    return engine


@every_stop
def test_every_flipped_byte_of_the_stored_offsets_is_reported_and_moves_nobody_forward(stop: StopKind) -> None:
    engine = with_consumers()
    data = engine.disk.contents(engine.offsets_path)
    for position in range(len(data)):
        other = with_disk_of(engine)
        other.disk.plant(other.offsets_path, flipped(data, position))
        other.open(stop)
        assert other.letters() == ["T"], position
        assert all((other.log.offsets.get(key) or 0) <= 20 for key in KEYS)
        other.restart(StopKind.KILLED)
        assert other.letters() == []


@every_stop
def test_stored_offsets_cut_at_every_byte_move_nobody_forward(stop: StopKind) -> None:
    engine = with_consumers()
    data = engine.disk.contents(engine.offsets_path)
    for size in range(len(data)):
        other = with_disk_of(engine)
        other.disk.plant(other.offsets_path, data[:size])
        other.open(stop)
        stored = [other.log.offsets.get(key) for key in KEYS]
        assert all(offset in (None, 2, 5, 9, 20) for offset in stored)
        if size % 32 or size < 64:
            assert set(other.letters()) == {"T"}
        other.log.store_offset(KEYS[0], 25)
        other.restart(StopKind.KILLED)
        assert other.log.offsets.get(KEYS[0]) == 25
        assert other.letters() == []


def after_rot_in_the_second_record(engine: Engine, stop: StopKind) -> Iterator[PartitionLog]:
    """The log as a start finds it, with each byte in turn of the second record in the offsets file flipped."""
    engine.stop()
    data = engine.disk.contents(engine.offsets_path)
    for position in range(96, 128):
        other = with_disk_of(engine)
        other.disk.plant(other.offsets_path, flipped(data, position))
        other.open(stop)
        yield other.log


@pytest.mark.parametrize("stop", [StopKind.CLEAN, StopKind.KILLED], ids=lambda stop: stop.value)
def test_a_move_back_that_rotted_does_not_send_the_consumer_forward_again(stop: StopKind) -> None:
    """The record before it says a larger offset: nobody can tell whose record the bad one was."""
    engine = Engine(ONE_SEGMENT)
    engine.fill(10)
    engine.log.store_offset(KEYS[0], 20)
    engine.log.store_offset(KEYS[0], 4)
    engine.log.store_offset(KEYS[1], 7)
    for log in after_rot_in_the_second_record(engine, stop):
        assert (log.offsets.get(KEYS[0]) or 0) <= 4
        assert log.offsets.get(KEYS[1]) == 7


@pytest.mark.parametrize("stop", [StopKind.CLEAN, StopKind.KILLED], ids=lambda stop: stop.value)
def test_a_delete_that_rotted_does_not_bring_the_consumer_back(stop: StopKind) -> None:
    engine = Engine(ONE_SEGMENT)
    engine.fill(10)
    engine.log.store_offset(KEYS[0], 20)
    engine.log.delete_offset(KEYS[0])
    engine.log.store_offset(KEYS[1], 7)
    for log in after_rot_in_the_second_record(engine, stop):
        assert log.offsets.get(KEYS[0]) is None
        assert log.offsets.get(KEYS[1]) == 7


# --- on the real disk -----------------------------------------------------------------------------------


def test_holes_and_odd_times_of_files_do_not_matter(tmp_path: Path) -> None:
    """The same partition, copied to a real disk with a sparse tail and a time in the future."""
    engine = segments(3)
    engine.disk.export(tmp_path)
    directory = tmp_path / engine.directory.relative_to("/")
    last = directory / f"{12:020d}.log"
    with last.open("r+b") as file:
        file.truncate(last.stat().st_size + 1024 * 1024)
    os.utime(last, (2**33, 2**33))
    log = PartitionLog.open(
        LocalFileSystem(), directory, IDENTITY, settings=ONE_SEGMENT, clock=ManualClock(), stop=StopKind.KILLED
    )
    result = LogReader(log).read(0, count=ALL, size_max=ALL)
    assert [message.offset for message in messages_of(result)] == list(range(18))
    assert log.findings == ()
    log.release_files()


@pytest.mark.parametrize("level", list(Durability))
def test_a_start_writes_nothing_it_need_not_write(level: Durability) -> None:
    """After a clean stop a start changes no byte of any file."""
    engine = segments(3)
    engine.settings = LogSettings(segment_size=1024 * 1024, durability=durability(level))
    before = {path: engine.disk.contents(path) for path in engine.disk.files()}
    engine.open(StopKind.CLEAN)
    assert {path: engine.disk.contents(path) for path in engine.disk.files()} == before
    assert engine.read_all()[1][-1].skipped == ()
