"""The check of a segment before it is archived: in large pieces if it is good, batch by batch if it is not."""

from pathlib import Path

import pytest
import xxhash

from courser.archive.checking import LocalDamage, check_batches
from courser.archive.pacing import Pace
from courser.archive.transfers import Range
from courser.records.batch import NewMessage, build_batch
from courser.records.stored_header import PartitionIdentity, blank_header, stamp
from courser.storage.ledger import SegmentFacts
from courser.storage.local_files import LocalFileSystem

IDENTITY = PartitionIdentity(bytes(range(16)), 3, 4)
PAYLOAD_SIZES = [[10, 10], [700], [1], [300, 20, 5000], [10, 10, 10], [9000]]
BASE_OFFSET = 50


def segment_of(path: Path) -> tuple[bytes, SegmentFacts, list[int]]:
    """A segment in a file: its bytes, the facts, and where its batches start."""
    data, starts, offset = b"", [], BASE_OFFSET
    for sizes in PAYLOAD_SIZES:
        batch = build_batch([NewMessage(bytes(size), number) for number, size in enumerate(sizes, 1)])
        starts.append(len(data))
        data += bytes(stamp(batch, blank_header(IDENTITY), offset, 5)) + bytes(batch.body)
        offset += batch.count
    path.write_bytes(data)
    return data, SegmentFacts(BASE_OFFSET, offset, len(data), 5, 5, offset - BASE_OFFSET, len(starts)), starts


def check(path: Path, facts: SegmentFacts, piece_size: int, start: int = 0, first_offset: int = BASE_OFFSET) -> bytes:
    file = LocalFileSystem().open(path)
    try:
        source = Range(file, start, facts.size - start)
        return check_batches(source, IDENTITY, facts, first_offset, [], Pace(0), piece_size=piece_size)
    finally:
        file.close()


@pytest.mark.parametrize("piece_size", [1, 255, 256, 257, 300, 1000, 9_400, 10_000, 1_000_000])
def test_a_good_segment_in_pieces_of_any_size(tmp_path: Path, piece_size: int) -> None:
    data, facts, starts = segment_of(tmp_path / "log")
    assert check(tmp_path / "log", facts, piece_size) == xxhash.xxh3_128_digest(data)
    found = check(tmp_path / "log", facts, piece_size, starts[2], BASE_OFFSET + 3)
    assert found == xxhash.xxh3_128_digest(data[starts[2] :]), "a part of it"


@pytest.mark.parametrize("piece_size", [1, 1000, 1_000_000])
@pytest.mark.parametrize("number", range(len(PAYLOAD_SIZES)))
def test_damage_in_any_batch_is_found(tmp_path: Path, number: int, piece_size: int) -> None:
    data, facts, starts = segment_of(tmp_path / "log")
    ends = [*starts[1:], len(data)]
    for position in (starts[number], starts[number] + 72, ends[number] - 1):
        damaged = bytearray(data)
        damaged[position] ^= 1
        (tmp_path / "log").write_bytes(damaged)
        with pytest.raises(LocalDamage) as found:
            check(tmp_path / "log", facts, piece_size)
        (damage,) = found.value.damages
        assert (damage.position, damage.end_position) == (starts[number], ends[number])


@pytest.mark.parametrize("piece_size", [1000, 1_000_000])
def test_a_segment_that_ends_too_early(tmp_path: Path, piece_size: int) -> None:
    data, facts, starts = segment_of(tmp_path / "log")
    for size in (starts[-1], starts[-1] + 100, starts[1], 0):
        (tmp_path / "log").write_bytes(data[:size])
        with pytest.raises(LocalDamage):
            check(tmp_path / "log", facts, piece_size)


def test_messages_that_are_missing_at_the_end(tmp_path: Path) -> None:
    data, facts, starts = segment_of(tmp_path / "log")
    (tmp_path / "log").write_bytes(data[: starts[-1]])
    short = SegmentFacts(facts.base_offset, facts.end_offset, starts[-1], 5, 5, facts.message_count, facts.batch_count)
    with pytest.raises(LocalDamage):
        check(tmp_path / "log", short, 1_000_000)
