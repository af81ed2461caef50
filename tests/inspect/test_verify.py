"""Every planted damage is found, and nothing else is."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from courser.inspect.findings import Severity
from courser.inspect.verify import Verification
from courser.records.layout import BATCH_HEADER_SIZE
from courser.records.stored_header import PartitionIdentity
from courser.storage.files import File
from courser.storage.index_entries import ROW, IndexEntries
from courser.storage.index_file import BLOCK_HEADER, encode_blocks, segment_seed
from courser.storage.jobs import perform
from courser.storage.ledger import RECORD_SIZE
from courser.storage.local_files import LocalFileSystem
from courser.storage.offset_table import encode_header
from courser.storage.recovery_cases import StopKind
from courser.storage.upkeep import plan_purge, plan_trim
from tests.inspect.partitions import (
    IDENTITY,
    PER_BATCH,
    Partition,
    batch_at,
    cut,
    flip,
    full_partition,
    lying_batch,
    stored,
    with_wrong_wire_checksum,
)
from tests.inspect.verifying import damages_of, findings_of, only_finding


def batch_bounds(number: int) -> tuple[int, int]:
    """Where a batch lies in its log, in which all have the same size."""
    size = len(stored(batch_at(10), offset=0, time=0))
    return number * size, (number + 1) * size


# --- healthy ---


def test_a_healthy_directory_has_no_findings(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    verification = Verification(LocalFileSystem(), partition.data_directory)
    assert list(verification.findings()) == []
    summary = verification.summary
    assert (summary.partition_count, summary.segment_count) == (1, len(partition.logs))
    assert (summary.batch_count, summary.message_count) == (30, 30 * PER_BATCH)
    assert summary.size >= sum(path.stat().st_size for path in partition.logs)


@pytest.mark.parametrize("depth", [0, 1, 3, 6])
def test_any_directory_above_a_partition_will_do(tmp_path: Path, depth: int) -> None:
    partition = full_partition(tmp_path / "data")
    directory = [partition.directory, *partition.directory.parents][depth]
    verification = Verification(LocalFileSystem(), directory)
    assert list(verification.findings()) == []
    assert verification.summary.partition_count == 1


def test_space_allocated_ahead_is_no_damage(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data", is_closed=False)
    segment = partition.log.open_segment
    assert segment is not None
    assert partition.logs[-1].stat().st_size > segment.size
    assert findings_of(partition.data_directory) == []


def test_a_segment_that_waits_for_its_seal_is_no_damage(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "data")
    partition.fill(3)
    for _ in range(20):
        partition.append()
    assert findings_of(partition.data_directory) == []


def test_nothing_is_found_in_the_second_life_of_a_partition(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    partition.open(StopKind.CLEAN)
    partition.fill(10)
    assert findings_of(partition.data_directory) == []


def test_a_trimmed_and_a_purged_partition_are_healthy(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data", is_closed=False)
    job = plan_trim(partition.log, partition.log.segments[2].base_offset)
    assert job is not None
    perform(job)
    assert findings_of(partition.data_directory) == []
    perform(plan_purge(partition.log))
    partition.fill(3)
    assert findings_of(partition.data_directory) == []


def test_the_gap_that_a_power_cut_leaves_is_known(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    before = partition.log.next_offset
    partition.open(StopKind.CRASHED)
    assert partition.log.next_offset > before
    partition.fill(10)
    assert findings_of(partition.data_directory) == []


_APPENDER = """
import sys
from pathlib import Path
from tests.inspect.partitions import Partition
partition = Partition(Path(sys.argv[1]))
while True:
    partition.append()
    partition.work()
    partition.store("readers", partition.log.next_offset - 1)
    if partition.log.next_offset % 30 == 0:
        print(partition.log.next_offset, flush=True)
"""


def test_nothing_is_found_beside_a_process_that_appends(tmp_path: Path) -> None:
    data_directory = tmp_path / "data"
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", _APPENDER, str(data_directory)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as appender:
        assert appender.stdout is not None
        try:
            assert appender.stdout.readline()
            counts = []
            for _ in range(15):
                verification = Verification(LocalFileSystem(), data_directory)
                findings = list(verification.findings())
                assert [finding for finding in findings if finding.severity is not Severity.NOTE] == []
                counts.append(verification.summary.message_count)
                appender.stdout.readline()
        finally:
            appender.kill()
    assert counts[-1] > counts[0]


# --- damaged logs ---


def test_a_flipped_header_is_found_with_its_offsets(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    start, end = batch_bounds(2)
    flip(partition.logs[1], start + 10)
    finding = only_finding(partition.data_directory)
    first = int(partition.logs[1].stem) + 2 * PER_BATCH
    assert (finding.severity, finding.path, finding.check) == (Severity.DAMAGE, partition.logs[1], "log")
    assert (finding.position, finding.end_position) == (start, end)
    assert (finding.first_offset, finding.end_offset) == (first, first + PER_BATCH)
    assert "header checksum" in finding.reason


def test_a_flipped_body_is_found_in_the_first_and_in_the_last_batch_of_a_segment(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    path = partition.logs[1]
    size = path.stat().st_size
    flip(path, BATCH_HEADER_SIZE)
    flip(path, size - 1)
    first, last = damages_of(partition.data_directory)
    base, next_base = int(path.stem), int(partition.logs[2].stem)
    assert (first.position, first.first_offset, first.end_offset) == (0, base, base + PER_BATCH)
    assert (last.end_position, last.first_offset, last.end_offset) == (size, next_base - PER_BATCH, next_base)


def test_every_byte_of_a_segment_matters(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    path = partition.logs[0]
    good = path.read_bytes()
    for position in range(0, len(good), 37):
        flip(path, position)
        assert len(damages_of(partition.directory)) == 1, position
        path.write_bytes(good)
    assert findings_of(partition.directory) == []


def test_a_message_that_lies_is_a_warning(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "data")
    partition.append()
    partition.append(lying_batch(PER_BATCH))
    finding = only_finding(partition.data_directory)
    assert (finding.severity, finding.check) == (Severity.WARNING, "frames")
    assert "offset 4" in finding.reason
    assert (finding.first_offset, finding.end_offset) == (3, 6)


def test_a_wire_checksum_that_is_wrong_under_right_hashes_is_damage(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "data")
    partition.append()
    path = partition.logs[0]
    path.write_bytes(with_wrong_wire_checksum(path.read_bytes()))
    assert "checksum for clients" in only_finding(partition.data_directory).reason


def test_time_that_goes_back_is_damage(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "data")
    partition.append()
    with partition.logs[0].open("ab") as file:
        file.write(stored(batch_at(PER_BATCH), offset=PER_BATCH, time=1))
    finding = only_finding(partition.data_directory)
    assert (finding.severity, finding.check, finding.first_offset) == (Severity.DAMAGE, "times", PER_BATCH)


def test_a_segment_of_another_partition_is_one_finding_that_names_both(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "data")
    partition.append()
    other = type(IDENTITY)(bytes(16), 1, 8)
    data = stored(batch_at(0), offset=0, time=2 * 10**15, identity=other)
    partition.logs[0].write_bytes(data + stored(batch_at(PER_BATCH), offset=PER_BATCH, time=2 * 10**15, identity=other))
    finding = only_finding(partition.data_directory)
    assert (finding.severity, finding.check, finding.path) == (Severity.DAMAGE, "files", partition.logs[0])
    assert all(str(identity) in finding.reason for identity in (IDENTITY, other))


def test_a_whole_batch_at_the_end_that_is_wrong_is_damage_after_a_kill_too(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "data")
    partition.append()
    data = partition.logs[0].read_bytes()
    batch = stored(batch_at(PER_BATCH), offset=PER_BATCH, time=2 * 10**15)
    partition.logs[0].write_bytes(data + batch[:-1] + b"!")
    assert only_finding(partition.data_directory).severity is Severity.DAMAGE
    partition.logs[0].write_bytes(data + batch[:-1])
    assert only_finding(partition.data_directory).severity is Severity.NOTE


def test_a_batch_of_another_partition_is_damage(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "data")
    partition.append()
    other = type(IDENTITY)(bytes(16), 1, 8)
    size = partition.logs[0].stat().st_size
    with partition.logs[0].open("ab") as file:
        file.write(stored(batch_at(PER_BATCH), offset=PER_BATCH, time=2 * 10**15, identity=other))
        file.write(stored(batch_at(2 * PER_BATCH), offset=2 * PER_BATCH, time=2 * 10**15))
    finding = only_finding(partition.data_directory)
    assert (finding.position, finding.first_offset, finding.end_offset) == (size, PER_BATCH, 2 * PER_BATCH)
    assert "belongs to" in finding.reason


@pytest.mark.parametrize("left", [0, 100, 700, 1000])
def test_a_sealed_segment_that_was_cut_is_one_damage(tmp_path: Path, left: int) -> None:
    partition = full_partition(tmp_path / "data")
    path, size = partition.logs[1], partition.logs[1].stat().st_size
    cut(path, left)
    (finding,) = damages_of(partition.data_directory)
    assert "was truncated" in finding.reason
    assert (finding.end_position, finding.end_offset) == (size, int(partition.logs[2].stem))


def test_a_sealed_segment_that_grew_is_damage(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    size = partition.logs[1].stat().st_size
    with partition.logs[1].open("ab") as file:
        file.write(b"more")
    finding = only_finding(partition.data_directory)
    assert (finding.position, finding.end_position) == (size, size + 4)


def test_an_open_segment_cut_below_its_recovery_point_is_damage(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    cut(partition.logs[-1], 300)
    (finding,) = damages_of(partition.data_directory)
    assert "synced" in finding.reason
    assert finding.end_offset == 30 * PER_BATCH


def test_zeros_in_the_middle_are_damage(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    start, end = batch_bounds(1)
    data = bytearray(partition.logs[0].read_bytes())
    data[start:end] = bytes(end - start)
    partition.logs[0].write_bytes(data)
    finding = only_finding(partition.data_directory)
    assert (finding.position, finding.end_position) == (start, end)


def test_a_torn_end_is_a_note_while_the_server_runs_and_damage_after_a_clean_stop(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    torn = stored(batch_at(90), offset=90, time=2 * 10**15)[:300]
    size = partition.logs[-1].stat().st_size
    with partition.logs[-1].open("ab") as file:
        file.write(torn)
    finding = only_finding(partition.data_directory)
    assert (finding.severity, finding.position, finding.first_offset) == (Severity.DAMAGE, size, 90)
    (partition.data_directory / "session").unlink()
    finding = only_finding(partition.data_directory)
    assert (finding.severity, finding.position) == (Severity.NOTE, size)
    assert "incomplete tail" in finding.reason


# --- whole files ---


def test_a_missing_segment_is_reported_under_its_name(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    path, next_path = partition.logs[1:3]
    path.unlink()
    finding = only_finding(partition.data_directory)
    assert (finding.severity, finding.path) == (Severity.DAMAGE, path)
    assert (finding.first_offset, finding.end_offset) == (int(path.stem), int(next_path.stem))


def test_a_missing_open_segment_is_damage(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    path = partition.logs[-1]
    path.unlink()
    finding = only_finding(partition.data_directory)
    assert (finding.path, finding.end_offset) == (path, 30 * PER_BATCH)


def test_a_missing_segment_is_noticed_without_a_ledger(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    path, next_path = partition.logs[1:3]
    path.unlink()
    partition.ledger.unlink()
    ledger, hole = damages_of(partition.data_directory)
    assert ledger.path == partition.ledger
    assert (hole.check, hole.path, hole.first_offset) == ("continuity", next_path, int(path.stem))


def test_segments_that_overlap_are_damage(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    base = int(partition.logs[1].stem) + PER_BATCH
    path = partition.directory / f"{base:020d}.log"
    path.write_bytes(stored(batch_at(base), offset=base, time=2 * 10**15))
    overlaps = [finding for finding in damages_of(partition.data_directory) if finding.check == "continuity"]
    assert [(finding.path, finding.first_offset) for finding in overlaps] == [(path, base)]


def test_a_file_that_vanishes_after_the_listing_is_skipped(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data", is_closed=False)
    gone = partition.logs[0]

    class Vanishing(LocalFileSystem):
        """Retention deletes the first segment as soon as somebody wants to open it."""

        def open(self, path: Path, *, writable: bool = False, create: bool = False) -> File:  # type: ignore[override]
            assert not writable
            assert not create
            if path == gone:
                job = plan_trim(partition.log, int(partition.logs[1].stem)) if gone.exists() else None
                if job is not None:
                    perform(job)
            return super().open(path)

    findings = list(Verification(Vanishing(), partition.data_directory).findings())
    assert [(finding.severity, finding.path) for finding in findings] == [(Severity.NOTE, gone)]


def test_a_directory_in_place_of_a_log_cannot_be_read(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    partition.logs[1].unlink()
    (partition.directory / f"{int(partition.logs[1].stem) + 1:020d}.log").mkdir()
    severities = {finding.severity for finding in findings_of(partition.data_directory)}
    assert Severity.UNREADABLE in severities


# --- derived and small files ---


def test_every_flipped_byte_of_a_sealed_index_is_found(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    path = partition.indexes[0]
    good = path.read_bytes()
    for position in (0, 9, 20, 50, 200, len(good) - 1):
        flip(path, position)
        finding = only_finding(partition.directory)
        assert (finding.severity, finding.check, finding.path) == (Severity.DAMAGE, "index", path)
        assert (finding.position, "rebuilt at next read" in finding.reason) == (0, True)
        path.write_bytes(good)


def test_an_absent_index_is_a_warning(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    path = partition.indexes[0]
    path.unlink()
    finding = only_finding(partition.data_directory)
    assert (finding.severity, finding.path) == (Severity.WARNING, path)


def test_the_index_of_another_segment_is_damage(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    shutil.copy(partition.indexes[0], partition.indexes[1])
    finding = only_finding(partition.data_directory)
    assert (finding.severity, finding.path) == (Severity.DAMAGE, partition.indexes[1])


def rewrite_index(path: Path, change: Callable[[list[tuple[int, ...]]], object], *, covered_size: int) -> None:
    """An index with right checksums and other entries."""
    data = path.read_bytes()
    count = BLOCK_HEADER.unpack_from(data)[3]
    rows = np.frombuffer(data, ROW, count, BLOCK_HEADER.size).tolist()
    change(rows)
    base = int(path.stem)
    entries = IndexEntries(base)
    entries.add_rows(np.array(rows, ROW))
    seed = segment_seed(IDENTITY, base)
    path.write_bytes(
        encode_blocks(entries, first_block=0, seed=seed, base_offset=base, interval=256, covered_size=covered_size)
    )


def test_an_index_whose_entry_leads_elsewhere_is_damage(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    path = partition.indexes[0]

    def move(rows: list[tuple[int, ...]]) -> None:
        offset, frame_position, *rest = rows[2]
        rows[2] = (offset, frame_position + 1, *rest)

    rewrite_index(path, move, covered_size=partition.logs[0].stat().st_size)
    finding = only_finding(partition.data_directory)
    assert (finding.severity, finding.check) == (Severity.DAMAGE, "index")
    assert "entry 2" in finding.reason


def test_an_index_that_lacks_an_entry_is_damage(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    rewrite_index(partition.indexes[0], lambda rows: rows.pop(1), covered_size=partition.logs[0].stat().st_size)
    finding = only_finding(partition.data_directory)
    assert (finding.severity, "differ from the log" in finding.reason) == (Severity.DAMAGE, True)


def test_a_stale_index_is_a_warning(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    rewrite_index(partition.indexes[0], lambda rows: rows.pop(), covered_size=100)
    finding = only_finding(partition.data_directory)
    assert (finding.severity, "stale" in finding.reason) == (Severity.WARNING, True)


@pytest.mark.parametrize("number", [0, 3, -1])
def test_a_flipped_ledger_record_is_found(tmp_path: Path, number: int) -> None:
    partition = full_partition(tmp_path / "data")
    count = partition.ledger.stat().st_size // RECORD_SIZE
    position = number % count * RECORD_SIZE
    flip(partition.ledger, position + 100)
    damage = damages_of(partition.data_directory)[0]
    assert (damage.check, damage.path, damage.position) == ("ledger", partition.ledger, position)


def test_half_a_record_at_the_end_of_the_ledger_is_a_note_unless_the_stop_was_clean(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    with partition.ledger.open("ab") as file:
        file.write(bytes(100))
    assert only_finding(partition.data_directory).severity is Severity.DAMAGE
    (partition.data_directory / "session").unlink()
    assert only_finding(partition.data_directory).severity is Severity.NOTE


def test_flipped_offsets_are_found(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    good = partition.offsets.read_bytes()
    for position in (0, 70, 100, len(good) - 1):
        flip(partition.offsets, position)
        finding = damages_of(partition.data_directory)[0]
        assert (finding.check, finding.path) == ("consumers", partition.offsets)
        assert finding.position == position // 32 * 32
        partition.offsets.write_bytes(good)


@pytest.mark.parametrize("size", [None, 0, 64, 96, 128])
def test_stored_offsets_that_are_emptied_cut_or_gone_are_found(tmp_path: Path, size: int | None) -> None:
    partition = full_partition(tmp_path / "data")
    if size is None:
        partition.offsets.unlink()
    else:
        cut(partition.offsets, size)
    finding = only_finding(partition.data_directory)
    assert (finding.severity, finding.check, finding.path) == (Severity.DAMAGE, "consumers", partition.offsets)


def test_stored_offsets_of_another_partition_are_found(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    stranger = PartitionIdentity(IDENTITY.topic_uuid, IDENTITY.partition_id + 1, IDENTITY.incarnation)
    partition.offsets.write_bytes(encode_header(stranger, 0, 1) + partition.offsets.read_bytes()[64:])
    finding = only_finding(partition.data_directory)
    assert (finding.check, finding.path) == ("consumers", partition.offsets)
    assert str(stranger) in finding.reason


def test_times_that_go_back_where_the_clock_was_set_back_are_noted(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data", is_closed=False)
    partition.clock.jump(-10_000_000_000)
    partition.append()
    partition.work()
    partition.close()
    findings = findings_of(partition.data_directory)
    assert findings
    assert {(finding.severity, finding.check) for finding in findings} == {(Severity.NOTE, "times")}


def test_a_flipped_session_is_found(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    flip(partition.data_directory / "session", 20)
    assert only_finding(partition.data_directory).check == "session"


def test_nothing_is_written(tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    flip(partition.logs[0], 300)
    partition.indexes[1].unlink()
    before = {path: path.stat() for path in tmp_path.rglob("*")}
    findings_of(partition.data_directory)
    after = {path: path.stat() for path in tmp_path.rglob("*")}
    assert before.keys() == after.keys()
    assert all(before[path].st_mtime_ns == after[path].st_mtime_ns for path in before)
