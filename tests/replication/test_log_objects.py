"""Objects of the log: what is believed, and what is refused."""

import struct

import pytest
import xxhash

from courser.archive.errors import ArchiveDamaged, ArchiveTooNew
from courser.archive.objects import HEADER_SIZE, Begin, Origin, Seal, encode_body
from courser.replication.log_objects import (
    ENTRY_SIZE,
    Entry,
    EntryKind,
    LogPosition,
    LogWriting,
    decode_log_object,
    is_copy,
    named_seal,
)
from tests.replication.leaders import IDENTITY, KEYS, entry

WRITING = LogWriting(KEYS, b"n" * 16)
POSITION = LogPosition(2, 5, parent=b"p" * 16, leader=WRITING.nonce)
ENTRIES = (
    Entry(EntryKind.BATCHES, IDENTITY, 10, b"some batches", base_offset=4),
    Entry(EntryKind.JOURNAL, IDENTITY, 3, b""),
    Entry(EntryKind.OFFSET, IDENTITY, 0, b"x" * 32),
)
DATA = WRITING.entries(POSITION, ENTRIES, time=9, op=3)


def test_entries_come_back_as_they_were() -> None:
    found = decode_log_object(DATA, KEYS, POSITION)
    assert isinstance(found.content, tuple)
    assert [(one.kind, one.identity, one.number, bytes(one.data), one.base_offset) for one in found.content] == [
        (one.kind, one.identity, one.number, one.data, one.base_offset) for one in ENTRIES
    ]
    assert found.origin == Origin(cluster=KEYS.cluster, epoch=2, nonce=WRITING.nonce, number=5, time=9, op=3)
    assert found.after == LogPosition(2, 6, parent=DATA[:16], leader=WRITING.nonce)


def test_the_place_of_each_field_is_that_of_the_page() -> None:
    entry_bytes = DATA[HEADER_SIZE : HEADER_SIZE + ENTRY_SIZE]
    assert struct.unpack_from("<HH", DATA, 36) == (1, 1)
    assert struct.unpack_from("<I", DATA, 60) == (3,)
    assert struct.unpack_from("<QQ", DATA, 64) == (2, 5)
    assert DATA[96:112] == b"p" * 16
    assert struct.unpack_from("<II16sQQQQ", entry_bytes) == (1, 3, b"t" * 16, 7, 10, 4, 12)
    assert DATA[16:32] == xxhash.xxh3_128_digest(DATA[HEADER_SIZE : HEADER_SIZE + 3 * ENTRY_SIZE])


@pytest.mark.parametrize("position", [0, 16, 100, 200, HEADER_SIZE, HEADER_SIZE + 50, len(DATA) - 1])
def test_any_other_byte_is_damage(position: int) -> None:
    damaged = bytearray(DATA)
    damaged[position] ^= 1
    with pytest.raises(ArchiveDamaged):
        decode_log_object(bytes(damaged), KEYS, POSITION)


@pytest.mark.parametrize("data", [DATA[:-1], DATA + b"x", DATA[:300], b""])
def test_too_few_and_too_many_bytes_are_damage(data: bytes) -> None:
    with pytest.raises(ArchiveDamaged):
        decode_log_object(data, KEYS, POSITION)


def test_an_object_is_believed_only_in_its_own_slot() -> None:
    with pytest.raises(ArchiveDamaged, match="another object"):
        decode_log_object(DATA, KEYS, LogPosition(2, 6, parent=b"p" * 16))


def test_an_object_must_follow_the_one_before() -> None:
    with pytest.raises(ArchiveDamaged, match="does not follow"):
        decode_log_object(DATA, KEYS, LogPosition(2, 5, parent=b"q" * 16, leader=b"m" * 16))


def test_what_a_clone_wrote_behind_a_slot_that_it_lost_is_void() -> None:
    position = LogPosition(2, 5, parent=b"q" * 16, leader=WRITING.nonce)
    found = decode_log_object(DATA, KEYS, position)
    assert found.content == ()
    assert found.after == LogPosition(2, 6, parent=b"q" * 16, leader=WRITING.nonce)


def test_an_entry_of_a_later_version_stops_the_reader() -> None:
    later = WRITING.entries(POSITION, [Entry(9, IDENTITY, 0, b"")], time=9)  # type: ignore[arg-type]
    with pytest.raises(ArchiveTooNew, match="kind 9"):
        decode_log_object(later, KEYS, POSITION)


def test_objects_are_copies_if_all_their_bytes_are_equal() -> None:
    other = WRITING.entries(POSITION, [entry(b"other bytes!")], time=9)
    assert is_copy(DATA[:HEADER_SIZE], DATA)
    assert not is_copy(other, DATA)
    changed = WRITING.entries(
        POSITION, (Entry(EntryKind.BATCHES, IDENTITY, 10, b"same batches", 4), *ENTRIES[1:]), 9, 3
    )
    assert len(changed) == len(DATA)
    assert not is_copy(changed[:HEADER_SIZE], DATA), "the header proves every byte"


def test_slot_0_says_where_the_seal_before_it_is() -> None:
    behind = LogPosition(3, 0, parent=b"p" * 16, sealed_slot=6)
    for data, kind in ((WRITING.begin(behind, b"f", 1), Begin), (WRITING.seal(behind, "start", 1), Seal)):
        assert named_seal(data, KEYS, 3) == 6
        assert isinstance(decode_log_object(data, KEYS, behind).content, kind)


def test_the_seals_of_an_archive_are_a_log_without_entries() -> None:
    position = LogPosition()
    for epoch in range(3):
        key = KEYS.seal(epoch)
        data = encode_body(Seal("start", "1"), key, Origin(cluster=KEYS.cluster, epoch=epoch, nonce=bytes(16)))
        position = decode_log_object(data, KEYS, position).after
    assert (position.epoch, position.slot, position.sealed_slot) == (3, 0, 0)


def test_entries_are_never_in_slot_0() -> None:
    first = LogPosition(2, 0, parent=b"p" * 16)
    with pytest.raises(ArchiveDamaged, match="wrong slot"):
        decode_log_object(WRITING.entries(first, (), 1), KEYS, first)
